//! What of the tasks of a plan follows from data and settings alone: neither from the memory limit, by which blocks are
//! cut, nor from threads. Whatever is random goes by that, so that it is the same wherever it runs.

use std::sync::Arc;

use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::exchange::BlockSize;
use super::tasks::{as_task_plan, is_ordered};
use super::{CombineExec, ExchangeExec, ExchangeScheme, GatherExec, MapExec, QueueExec, ReadExec, TurnsExec};

/// With how many parts the ids of a plan's tasks say which rows they are of, where that follows from the data. Further
/// parts number blocks of these rows, which are cut as memory allows. `None` where nothing of the ids follows from the
/// data.
pub(crate) fn steady_parts(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    if plan.is::<ReadExec>() || is_one_task(plan) {
        Some(1)
    } else if let Some(input) = passes_tasks_on(plan) {
        Some(input).filter(|_| is_ordered(plan.as_ref())).and_then(steady_parts)
    } else if let Some(exchange) = plan.downcast_ref::<ExchangeExec>() {
        match exchange.scheme() {
            // Cut where the rows of a task say, or where the bytes of blocks do.
            ExchangeScheme::Sized(BlockSize::Rows { strict: false, .. }) => steady_parts(exchange.input()).map(|_| 1),
            ExchangeScheme::Sized(BlockSize::Bytes(_)) => None,
            // As many as fit the memory.
            ExchangeScheme::Hash { num_blocks: None, .. } | ExchangeScheme::Range { boundaries: None, .. } => None,
            _ => Some(1),
        }
    } else if is_union(plan) && is_ordered(plan.as_ref()) {
        let mut parts = plan.children().into_iter().map(steady_parts);
        let first = parts.next().flatten()?;
        parts.all(|parts| parts == Some(first)).then_some(first + 1)
    } else {
        None
    }
}

/// Whether the tasks of a plan follow from the data, each with all of its rows.
pub(crate) fn has_steady_tasks(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<QueueExec>() {
        return false;
    }
    if let Some(input) = passes_tasks_on(plan) {
        return has_steady_tasks(input);
    }
    let are_whole = match plan.downcast_ref::<ExchangeExec>().map(ExchangeExec::scheme) {
        // Large ones are cut; and the number of others follows from bytes, of which a run has a few more or less.
        Some(ExchangeScheme::Hash { sort: false, .. } | ExchangeScheme::Random { num_blocks: None, .. }) => false,
        _ if is_union(plan) => plan.children().into_iter().all(has_steady_tasks),
        _ => true,
    };
    are_whole && steady_parts(plan).is_some()
}

/// Whether all rows of a plan are one task.
pub(crate) fn is_one_task(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<CombineExec>() || plan.is::<GatherExec>() {
        return true;
    }
    match passes_tasks_on(plan) {
        Some(input) => is_one_task(input),
        None => as_task_plan(plan.as_ref()).is_none() && plan.output_partitioning().partition_count() == 1,
    }
}

/// The input of an operator whose tasks are those of its input, or blocks of them.
fn passes_tasks_on(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    plan.children().into_iter().next().filter(|_| plan.is::<MapExec>() || plan.is::<QueueExec>())
}

fn is_union(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<UnionExec>() || plan.is::<TurnsExec>()
}
