//! Plans of epochs: what is random in another way each time that a dataset is run.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNodeRecursion};
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};

use super::{LocalShuffleNode, PipelineNode, RandomShuffleNode, RandomizeBlocksNode, extension, node_of};
use crate::seed::Seeded;

/// The plan with the seeds that the execution number `epoch` has, where these are for each execution. Those of
/// pipelines stay: they count their own epochs.
pub(crate) fn plan_of_epoch(plan: LogicalPlan, epoch: u64) -> Result<LogicalPlan> {
    if epoch == 0 { Ok(plan) } else { fixed_plan_of_epoch(plan, epoch) }
}

/// The same, with seeds that stay as they are in all further executions.
pub(crate) fn fixed_plan_of_epoch(plan: LogicalPlan, epoch: u64) -> Result<LogicalPlan> {
    let seeded = |plan: LogicalPlan| {
        if node_of::<PipelineNode>(&plan).is_some() {
            return Ok(Transformed::new(plan, false, TreeNodeRecursion::Jump));
        }
        let changed = seeded::<RandomShuffleNode>(&plan, epoch)
            .or_else(|| seeded::<RandomizeBlocksNode>(&plan, epoch))
            .or_else(|| seeded::<LocalShuffleNode>(&plan, epoch));
        Ok(changed.map_or_else(|| Transformed::no(plan), Transformed::yes))
    };
    plan.transform_down_with_subqueries(seeded).data()
}

fn seeded<N: Seeded + UserDefinedLogicalNode + 'static>(plan: &LogicalPlan, epoch: u64) -> Option<LogicalPlan> {
    let mut node = node_of::<N>(plan)?.clone();
    let seed = node.seed_mut();
    if !seed.is_for_each_execution() {
        return None;
    }
    *seed = seed.epoch(epoch);
    Some(extension(node))
}
