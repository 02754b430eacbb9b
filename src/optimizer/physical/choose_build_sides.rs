//! Hash joins build the table of the side that is expected to have fewer bytes.
//!
//! DataFusion compares what statistics say: it takes a fifth for what any condition keeps, and knows nothing of most
//! joins. Here the estimates are those by which joins are ordered (`estimate.rs`), and a side stays where they do not
//! say that the other one is much smaller.
//!
//! ```text
//! HashJoinExec: RightSemi, on=[(order, id)]          HashJoinExec: LeftSemi, on=[(id, order)]
//!   ReadExec: lines                            ->      FilterExec: orders of a month
//!   FilterExec: orders of a month                      ReadExec: lines
//! ```
//!
//! Correct because a join says which of its sides is which. Joins for `NOT IN` stay: they look at all of one side
//! first.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

use super::estimate::estimate;
use super::spill_joins::build_row_bytes;
use crate::config::BlockyardOptions;

/// A side has to be smaller by this factor: estimates are rough.
const WORTH_IT: f64 = 1.5;

#[derive(Debug)]
pub(super) struct ChooseBuildSides;

impl PhysicalOptimizerRule for ChooseBuildSides {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_join_order || !config.optimizer.join_reordering {
            return Ok(plan);
        }
        plan.transform_up(|node| match node.downcast_ref::<HashJoinExec>().filter(|join| builds_larger_side(join)) {
            Some(join) => Ok(Transformed::yes(join.swap_inputs(*join.partition_mode())?)),
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "choose_build_sides"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn builds_larger_side(join: &HashJoinExec) -> bool {
    let bytes = |side| Some(estimate(side)?.rows * build_row_bytes(side) as f64);
    join.join_type().supports_swap()
        && !join.null_aware
        && join.fetch().is_none()
        && bytes(join.left()).zip(bytes(join.right())).is_some_and(|(left, right)| left > WORTH_IT * right)
}
