//! Brings our partitions together in the order of the dataset instead of as rows come.
//!
//! DataFusion coalesces partitions by arrival; over our stages, which know the order of their tasks, that would throw
//! the order away. Nor are gathered rows dealt out to several partitions again. A plan whose root still has several
//! partitions gets a gather on top, below what computes its scalar subqueries. Off with `preserve_order`.
//!
//! ```text
//! CoalescePartitionsExec: fetch=5         GatherExec: fetch=5
//!   MapExec: ReadCsv->Filter(a > 1)  ->     MapExec: ReadCsv->Filter(a > 1)
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{GatherExec, IntoPlan, PlanExt, as_task_plan, is_ordered, uses_ours};

#[derive(Debug)]
pub(super) struct GatherInOrder;

impl PhysicalOptimizerRule for GatherInOrder {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        if !options.preserve_order {
            return Ok(plan);
        }
        let plan = plan
            .transform_up(|node| {
                if let Some(coalesce) = node.downcast_ref::<CoalescePartitionsExec>()
                    && has_order(coalesce.input())
                {
                    let gather = GatherExec::new(Arc::clone(coalesce.input()), coalesce.fetch());
                    return Ok(Transformed::yes(gather.into_plan()));
                }
                // It counts rows for those who begin in the middle, also where there is one partition.
                if let Some(limit) = node.downcast_ref::<GlobalLimitExec>()
                    && let (0, Some(fetch)) = (limit.skip(), limit.fetch())
                    && options.prefer_resumable_plans
                    && has_order(limit.input())
                {
                    let gather = GatherExec::new(Arc::clone(limit.input()), Some(fetch));
                    return Ok(Transformed::yes(gather.into_plan()));
                }
                // Dealing batches out in turn would lose the order that was just made.
                if let Some(repartition) = node.downcast_ref::<RepartitionExec>()
                    && matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_))
                    && repartition.input().is_operator::<GatherExec>()
                {
                    return Ok(Transformed::yes(Arc::clone(repartition.input())));
                }
                Ok(Transformed::no(node))
            })
            .data()?;
        gathered(plan)
    }

    fn name(&self) -> &str {
        "gather_in_order"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan with its rows in one partition, if they have an order.
fn gathered(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.is::<ScalarSubqueryExec>() {
        // What it hands on are the rows of its first input; the others are its subqueries.
        let mut inputs: Vec<_> = plan.children().into_iter().map(Arc::clone).collect();
        inputs[0] = gathered(Arc::clone(&inputs[0]))?;
        return replace_children_if_necessary(plan, inputs);
    }
    match has_order(&plan) && plan.output_partitioning().partition_count() > 1 {
        true => Ok(GatherExec::new(plan, None).into_plan()),
        false => Ok(plan),
    }
}

fn has_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let ours = as_task_plan(plan.as_ref()).is_some() || plan.is::<UnionExec>() && uses_ours(plan);
    ours && is_ordered(plan.as_ref())
}
