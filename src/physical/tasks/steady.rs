//! What of the tasks of a plan follows from data and settings alone: neither from the memory limit, by which blocks are
//! cut, nor from threads. Whatever is random goes by that, so that it is the same wherever it runs.

use std::sync::Arc;

use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::streams::{as_task_plan, is_ordered};
use crate::physical::operator::TaskIdentity;

fn identity_of(plan: &Arc<dyn ExecutionPlan>) -> TaskIdentity<'_> {
    match as_task_plan(plan.as_ref()) {
        Some(plan) => plan.identity(),
        None if plan.output_partitioning().partition_count() == 1 => TaskIdentity::OneTask,
        None if plan.is::<UnionExec>() => TaskIdentity::OfInputs,
        None => TaskIdentity::Unsteady,
    }
}

/// With how many parts the ids of a plan's tasks say which rows they are of, where that follows from the data. Further
/// parts number blocks of these rows, which are cut as memory allows. `None` where nothing of the ids follows from the
/// data.
pub(crate) fn steady_parts(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    match identity_of(plan) {
        TaskIdentity::Own { .. } | TaskIdentity::OneTask => Some(1),
        TaskIdentity::Windows => Some(2),
        _ if is_one_task(plan) => Some(1),
        TaskIdentity::OwnIfInput { input } => steady_parts(input).map(|_| 1),
        TaskIdentity::OfInput { input, .. } => Some(input).filter(|_| is_ordered(plan.as_ref())).and_then(steady_parts),
        TaskIdentity::OfInputs if is_ordered(plan.as_ref()) => {
            let mut parts = plan.children().into_iter().map(steady_parts);
            let first = parts.next().flatten()?;
            parts.all(|parts| parts == Some(first)).then_some(first + 1)
        }
        TaskIdentity::OfInputs | TaskIdentity::Unsteady => None,
    }
}

/// Whether the tasks of a plan follow from the data, each with all of its rows.
pub(crate) fn has_steady_tasks(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match identity_of(plan) {
        TaskIdentity::OfInput { input, is_whole } => is_whole && has_steady_tasks(input),
        TaskIdentity::Own { is_whole: false } => false,
        TaskIdentity::OfInputs => plan.children().into_iter().all(has_steady_tasks) && steady_parts(plan).is_some(),
        _ => steady_parts(plan).is_some(),
    }
}

/// Whether all rows of a plan are one task.
pub(crate) fn is_one_task(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match identity_of(plan) {
        TaskIdentity::OneTask => true,
        TaskIdentity::OfInput { input, .. } => is_one_task(input),
        _ => false,
    }
}
