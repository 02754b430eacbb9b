//! Puts a queue behind every stage for which the user says how it is to run: the scheduler runs what is before a queue,
//! as many tasks at once as was asked for. Other stages run on the threads of whoever takes their rows, and pay
//! nothing.
//!
//! ```text
//! GatherExec                                    GatherExec
//!   MapExec: MapBatches(f), concurrency=8   ->    QueueExec
//!                                                   MapExec: MapBatches(f), concurrency=8
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::functions::Compute;
use crate::physical::{ExchangeExec, GatherExec, IntoPlan, MapExec, Operator, PlanExt, QueueExec, QueueLimit};

#[derive(Debug)]
pub(super) struct ScheduleStages;

impl PhysicalOptimizerRule for ScheduleStages {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if node.is_operator::<QueueExec>() || !node.children().into_iter().any(is_scheduled) {
                return Ok(Transformed::no(node));
            }
            let all_to_all = node.operator::<ExchangeExec>().is_some_and(|exchange| !exchange.streams());
            let children = node.children().into_iter().map(|child| queued(child, all_to_all)).collect();
            Ok(Transformed::yes(replace_children_if_necessary(node, children)?))
        };
        let scheduled = queued(&plan.transform_up(rewrite).data()?, false);
        // Below a limit tasks begin as rows lack.
        let limit = |node: Arc<dyn ExecutionPlan>| {
            let Some(fetch) = node.operator::<GatherExec>().and_then(GatherExec::fetch) else {
                return Ok(Transformed::no(node));
            };
            let limited = limited(node.children()[0], QueueLimit::Rows(fetch))?;
            Ok(Transformed::yes(replace_children_if_necessary(node, vec![limited])?))
        };
        scheduled.transform_up(limit).data()
    }

    fn name(&self) -> &str {
        "schedule_stages"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn is_scheduled(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.operator::<MapExec>().is_some_and(|map| map.compute().canonical() != Compute::default())
}

/// The plan with limited queues, where at most `limit` of its rows are wanted.
fn limited(plan: &Arc<dyn ExecutionPlan>, limit: QueueLimit) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(queue) = plan.operator::<QueueExec>() {
        let input = limited(plan.children()[0], limit)?;
        let queue = queue.with_limit(queue.limit().unwrap_or(limit)).into_plan();
        return replace_children_if_necessary(queue, vec![input]);
    }
    let below = match (plan.operator::<MapExec>(), limit) {
        (Some(map), QueueLimit::Rows(rows)) if map.steps().iter().all(|step| step.keeps_first(rows)) => limit,
        (Some(_), _) => QueueLimit::Unknown,
        (None, _) if plan.is::<UnionExec>() => limit,
        _ => return Ok(Arc::clone(plan)),
    };
    let inputs = plan.children().into_iter().map(|input| limited(input, below)).collect::<Result<_>>()?;
    replace_children_if_necessary(Arc::clone(plan), inputs)
}

fn queued(plan: &Arc<dyn ExecutionPlan>, all_to_all: bool) -> Arc<dyn ExecutionPlan> {
    match is_scheduled(plan) {
        true if all_to_all => QueueExec::new(Arc::clone(plan)).before_all_to_all().into_plan(),
        true => QueueExec::new(Arc::clone(plan)).into_plan(),
        false => Arc::clone(plan),
    }
}
