//! Whether a plan gives the same rows in the same order again.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::physical::is_join;
use crate::physical::operator::stages_below;
use crate::physical::tasks::{as_task_plan, is_ordered};

/// Why rows of a plan may come otherwise when it runs again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsteady {
    /// The operator that is the reason.
    pub(crate) operator: String,
    /// What helps.
    pub(crate) remedy: &'static str,
}

/// The first operator whose rows may come otherwise when it runs again, if there is one.
pub(crate) fn unsteady(plan: &Arc<dyn ExecutionPlan>) -> Option<Unsteady> {
    let inputs = as_task_plan(plan.as_ref()).map_or(usize::MAX, |plan| plan.inputs_with_rows());
    if let Some(found) = stages_below(plan.as_ref()).into_iter().take(inputs).find_map(unsteady) {
        return Some(found);
    }
    let operator = as_task_plan(plan.as_ref()).map_or_else(|| plan.name().to_owned(), |plan| plan.stage_name());
    let because = |remedy| Some(Unsteady { operator, remedy });
    if is_join(plan.as_ref()) {
        return because("the rows of a join have no order; write it to files, or materialize it, and read these");
    }
    if plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| !aggregate.group_expr().is_empty()) {
        return because("groups have no order; write them to files, or materialize them, and read these");
    }
    if plan.is::<SortExec>() {
        return because(
            "rows with equal keys come in any order; sort all rows of a dataset, without a limit, or materialize",
        );
    }
    if let Some(remedy) = as_task_plan(plan.as_ref()).and_then(|plan| plan.unsteady_order()) {
        return because(remedy);
    }
    let arrives = plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>();
    if arrives || (plan.output_partitioning().partition_count() > 1 && !is_ordered(plan.as_ref())) {
        return because("its rows come as they come; write them to files, or materialize them, and read these");
    }
    has_volatile(plan.as_ref()).then_some(()).and_then(|()| {
        because(
            "it calls a function that gives something else each time; use one with a seed, or write its rows to files",
        )
    })
}

fn has_volatile(plan: &dyn ExecutionPlan) -> bool {
    let mut found = false;
    let mut look = |expression: &Arc<dyn PhysicalExpr>| {
        found |= is_volatile(expression);
        Ok(TreeNodeRecursion::Continue)
    };
    // What cannot be looked at is as if it were volatile.
    plan.apply_expressions(&mut look).is_err() || found
}
