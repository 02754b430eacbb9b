//! Plans whose rows never end, and what cannot be done with them.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{FetchType, LogicalPlan};

use super::PipelineNode;
use crate::logical::{LocalShuffleNode, MapNode, MixNode, RandomizeBlocksNode, WindowNode, ZipNode, node_of};

/// Whether a plan never ends: a pipeline that is repeated for ever, with what hands its rows on above it. Fails where
/// something needs all rows of such a plan, or a window is read that no pipeline gives.
pub(crate) fn is_endless(plan: &LogicalPlan) -> Result<bool> {
    if let Some(pipeline) = node_of::<PipelineNode>(plan) {
        return pipeline.is_endless();
    }
    if node_of::<WindowNode>(plan).is_some() {
        return plan_err!(
            "a window is read outside of the pipeline that it is of; in SQL, this_window stands in the query of \
             each_window or foreach_window"
        );
    }
    let mut endless = Vec::new();
    for input in plan.inputs() {
        endless.push(is_endless(input)?);
    }
    if !endless.contains(&true) {
        return Ok(false);
    }
    match plan {
        LogicalPlan::Limit(limit) if matches!(limit.get_fetch_type()?, FetchType::Literal(Some(_))) => Ok(false),
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Unnest(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Union(_) => Ok(true),
        plan if hands_on(plan) => Ok(true),
        plan => {
            let what = plan.display().to_string();
            let what = what.split(':').next().unwrap_or_default().to_owned();
            plan_err!(
                "{what} needs all rows of an endless pipeline; repeat it so many times, put a LIMIT below, or do it in each \
                 window"
            )
        }
    }
}

/// Whether it is a node of ours that gives rows while they come.
fn hands_on(plan: &LogicalPlan) -> bool {
    node_of::<MapNode>(plan).is_some()
        || node_of::<LocalShuffleNode>(plan).is_some()
        || node_of::<ZipNode>(plan).is_some()
        || node_of::<MixNode>(plan).is_some()
        || node_of::<RandomizeBlocksNode>(plan).is_some_and(|node| node.window().is_some())
}
