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
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, try_embed_projection};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::cardinality::max_rows;
use crate::physical::{IntoPlan, LoopJoinExec};

#[derive(Debug)]
pub(super) struct LoopJoins;

impl PhysicalOptimizerRule for LoopJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let crossed = |node: Arc<dyn ExecutionPlan>| {
            let Some(join) = node.downcast_ref::<CrossJoinExec>() else { return Ok(Transformed::no(node)) };
            let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
            let joined: Arc<dyn ExecutionPlan> =
                Arc::new(NestedLoopJoinExec::try_new(left, right, None, &JoinType::Inner, None)?);
            // They take metadata of another side.
            let same = looks_up(&joined).is_some() && joined.schema() == node.schema();
            Ok(if same { Transformed::yes(joined) } else { Transformed::no(node) })
        };
        let narrow = |node: Arc<dyn ExecutionPlan>| {
            let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(Transformed::no(node)) };
            let narrower = looks_up(projection.input()).map(|join| try_embed_projection(projection, join));
            Ok(narrower.transpose()?.flatten().map_or_else(|| Transformed::no(node), Transformed::yes))
        };
        let rewrite = |node: Arc<dyn ExecutionPlan>| match looks_up(&node) {
            Some(join) => Ok(Transformed::yes(LoopJoinExec::new(join)?.into_plan())),
            None => Ok(Transformed::no(node)),
        };
        plan.transform_up(crossed).data()?.transform_up(narrow).data()?.transform_up(rewrite).data()
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
    let ends = |side: &Arc<dyn ExecutionPlan>| !side.boundedness().is_unbounded();
    plan.downcast_ref::<NestedLoopJoinExec>()
        .filter(|join| max_rows(join.left()).is_none_or(|rows| rows > 1) && ends(join.left()) && ends(join.right()))
}
