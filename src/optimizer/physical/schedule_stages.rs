//! Puts a queue behind every stage for which the user says how it is to run: the scheduler runs what is before a queue, as
//! many tasks at once as was asked for. Other stages run on the threads of whoever takes their rows, and pay nothing.
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
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::functions::Compute;
use crate::physical::{ExchangeExec, MapExec, QueueExec};

#[derive(Debug)]
pub(super) struct ScheduleStages;

impl PhysicalOptimizerRule for ScheduleStages {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if node.is::<QueueExec>() || !node.children().into_iter().any(is_scheduled) {
                return Ok(Transformed::no(node));
            }
            let all_to_all = node.downcast_ref::<ExchangeExec>().is_some_and(|exchange| !exchange.streams());
            let children = node.children().into_iter().map(|child| queued(child, all_to_all)).collect();
            Ok(Transformed::yes(replace_children_if_necessary(node, children)?))
        };
        Ok(queued(&plan.transform_up(rewrite).data()?, false))
    }

    fn name(&self) -> &str {
        "schedule_stages"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn is_scheduled(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<MapExec>().is_some_and(|map| map.compute().canonical() != Compute::default())
}

fn queued(plan: &Arc<dyn ExecutionPlan>, all_to_all: bool) -> Arc<dyn ExecutionPlan> {
    match is_scheduled(plan) {
        true if all_to_all => Arc::new(QueueExec::new(Arc::clone(plan)).before_all_to_all()),
        true => Arc::new(QueueExec::new(Arc::clone(plan))),
        false => Arc::clone(plan),
    }
}
