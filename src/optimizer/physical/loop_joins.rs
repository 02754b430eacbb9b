//! Joins on other conditions than equal keys look up their matches, and no side of them has to fit in memory.
//!
//! ```text
//! NestedLoopJoinExec: filter=x >= low AND x <= high      LoopJoinExec: looked up by=[low <= x, high >= x]
//!   ReadExec (low, high)                            ->     ReadExec (low, high)
//!   ReadExec (x)                                           ReadExec (x)
//! ```
//!
//! DataFusion's joins compare every row with every other one, or give all pairs where there is no condition. They stay
//! where the side that they hold is known to have one row, as that of a subquery for one value: nothing has to be
//! looked up there.
//!
//! Columns that only the condition needs are not given, as DataFusion would see to later, when it no longer knows the
//! join.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, try_embed_projection};

use super::cardinality::max_rows;
use crate::physical::{IntoPlan, LoopJoinExec};

#[derive(Debug)]
pub(super) struct LoopJoins;

impl PhysicalOptimizerRule for LoopJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let narrow = |node: Arc<dyn ExecutionPlan>| {
            let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(Transformed::no(node)) };
            let narrower = looks_up(projection.input()).map(|join| try_embed_projection(projection, join));
            Ok(narrower.transpose()?.flatten().map_or_else(|| Transformed::no(node), Transformed::yes))
        };
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if let Some(join) = looks_up(&node) {
                return Ok(Transformed::yes(LoopJoinExec::new(join)?.into_plan()));
            }
            match node.downcast_ref::<CrossJoinExec>().filter(|join| !has_one_row(join.left())) {
                Some(join) => {
                    let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
                    let join = NestedLoopJoinExec::try_new(left, right, None, &JoinType::Inner, None)?;
                    Ok(Transformed::yes(LoopJoinExec::new(&join)?.into_plan()))
                }
                None => Ok(Transformed::no(node)),
            }
        };
        plan.transform_up(narrow).data()?.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "loop_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The join of which rows would be looked up.
fn looks_up(plan: &Arc<dyn ExecutionPlan>) -> Option<&NestedLoopJoinExec> {
    plan.downcast_ref::<NestedLoopJoinExec>().filter(|join| !has_one_row(join.left()))
}

fn has_one_row(side: &Arc<dyn ExecutionPlan>) -> bool {
    max_rows(side).is_some_and(|rows| rows <= 1)
}
