//! What the tasks of a stage begin with, and a stage of some of them alone.
//!
//! ```text
//! BucketJoinExec                       a task: some of the hashes
//!   RemoteExchangeExec   number 0
//!     MapExec                          a task: one of the read
//!       ReadExec
//!   RemoteExchangeExec   number 1
//!     BucketJoinExec                   a task: some of the hashes
//!       RemoteExchangeExec   number 2
//!         ReadExec                     ..
//! ```

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::RemoteExchangeExec;
use crate::physical::operator::{IntoPlan, PlanExt};
use crate::physical::{FoldExec, ReadExec};

/// What the tasks of a stage begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StageSource {
    /// These tasks of a read.
    Tasks(Range<usize>),
    /// What executors exchange: there are tasks when all rows have been dealt out.
    Exchanges(Vec<ExchangeSource>),
}

/// An exchange below a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExchangeSource {
    /// Which of the exchanges of the whole plan it is.
    pub(crate) number: usize,
    /// What the tasks begin with whose rows are exchanged.
    pub(crate) input: StageSource,
}

impl StageSource {
    /// The tasks that are known before anything runs.
    pub(crate) fn tasks(&self) -> Range<usize> {
        match self {
            Self::Tasks(tasks) => tasks.clone(),
            Self::Exchanges(_) => 0..0,
        }
    }
}

/// Where some of the tasks of a stage have their rows from.
pub(crate) enum PartSource<'a> {
    /// From these tasks of its read.
    Tasks(Range<usize>),
    /// From what the exchange of a number gives them.
    Exchanges(&'a dyn Fn(usize) -> Result<Arc<dyn ExecutionPlan>>),
}

/// Some of the tasks of a stage.
pub(crate) struct Part<'a> {
    /// Where they begin.
    pub(crate) source: PartSource<'a>,
    /// Gives what stands for a side of a join that all tasks have whole.
    pub(crate) whole: &'a StandIn<'a>,
}

/// Gives a plan with the rows of a plan, which is the side of this number.
type StandIn<'a> = dyn Fn(usize, &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> + 'a;

/// Which exchange and which side comes next.
struct Next {
    exchange: usize,
    whole: usize,
}

/// Whether a join has all of its left side wherever some of its right one is.
pub(super) fn is_held_whole(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<HashJoinExec>().is_some_and(|join| *join.partition_mode() == PartitionMode::CollectLeft)
}

/// Whether it deals out among threads what executors have exchanged.
pub(super) fn deals_out_exchanged(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<RepartitionExec>()
        .is_some_and(|repartition| repartition.input().is_operator::<RemoteExchangeExec>())
}

/// The inputs of an operator that have the tasks of its stage. What else it reads, it reads whole.
pub(super) fn stage_inputs(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<dyn ExecutionPlan>> {
    let mut inputs = plan.children();
    if is_held_whole(plan) {
        inputs.remove(0);
    }
    inputs
}

/// What the tasks of a stage begin with.
pub(crate) fn source_of(stage: &Arc<dyn ExecutionPlan>) -> StageSource {
    source_from(stage, &mut 0)
}

fn source_from(stage: &Arc<dyn ExecutionPlan>, next: &mut usize) -> StageSource {
    if let Some(read) = stage.operator::<ReadExec>() {
        return StageSource::Tasks(read.tasks_left());
    }
    if let Some(exchange) = stage.operator::<RemoteExchangeExec>() {
        let number = *next;
        *next += 1;
        let input = source_from(exchange.input(), next);
        return StageSource::Exchanges(vec![ExchangeSource { number, input }]);
    }
    let mut exchanges = Vec::new();
    for input in stage_inputs(stage) {
        match source_from(input, next) {
            StageSource::Exchanges(more) => exchanges.extend(more),
            tasks @ StageSource::Tasks(_) => return tasks,
        }
    }
    match exchanges.is_empty() {
        true => StageSource::Tasks(0..0),
        false => StageSource::Exchanges(exchanges),
    }
}

/// The exchange of a number, counted as in [`source_of`].
pub(crate) fn exchange_of(stage: &Arc<dyn ExecutionPlan>, number: usize) -> Option<&RemoteExchangeExec> {
    exchange_from(stage, &mut 0, number)
}

fn exchange_from<'a>(
    stage: &'a Arc<dyn ExecutionPlan>,
    next: &mut usize,
    number: usize,
) -> Option<&'a RemoteExchangeExec> {
    if stage.is_operator::<ReadExec>() {
        return None;
    }
    if let Some(exchange) = stage.operator::<RemoteExchangeExec>() {
        let own = *next;
        *next += 1;
        return if own == number { Some(exchange) } else { exchange_from(exchange.input(), next, number) };
    }
    stage_inputs(stage).into_iter().find_map(|input| exchange_from(input, next, number))
}

/// How many exchanges a stage has.
pub(super) fn num_exchanges(stage: &Arc<dyn ExecutionPlan>) -> usize {
    if stage.is_operator::<ReadExec>() {
        return 0;
    }
    let below = stage_inputs(stage).into_iter().map(num_exchanges).sum::<usize>();
    usize::from(stage.is_operator::<RemoteExchangeExec>()) + below
}

/// A stage of some of its tasks alone, one after the other. `first` is the number of its first exchange.
pub(crate) fn of_part(stage: &Arc<dyn ExecutionPlan>, first: usize, part: &Part<'_>) -> Result<Arc<dyn ExecutionPlan>> {
    part_from(stage, &mut Next { exchange: first, whole: 0 }, part)
}

fn part_from(plan: &Arc<dyn ExecutionPlan>, next: &mut Next, part: &Part<'_>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(read) = plan.operator::<ReadExec>() {
        let PartSource::Tasks(tasks) = &part.source else {
            return internal_err!("{} has tasks of its own", plan.name());
        };
        return Ok(read.of_tasks(tasks.clone()).with_streams(1).into_plan());
    }
    if plan.is_operator::<RemoteExchangeExec>() {
        let PartSource::Exchanges(rows_of) = part.source else { return internal_err!("{} has no tasks", plan.name()) };
        let number = next.exchange;
        next.exchange += num_exchanges(plan);
        return rows_of(number);
    }
    // One thread has all rows of a part.
    let has_one_partition =
        deals_out_exchanged(plan) || plan.is_operator::<FoldExec>() && matches!(part.source, PartSource::Exchanges(_));
    if let (true, [input]) = (has_one_partition, plan.children().as_slice()) {
        return part_from(input, next, part);
    }
    let has_a_side_whole = is_held_whole(plan);
    let inputs = plan.children().into_iter().enumerate().map(|(number, input)| match (has_a_side_whole, number) {
        (true, 0) => {
            next.whole += 1;
            (part.whole)(next.whole, input)
        }
        _ => part_from(input, next, part),
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(plan), inputs)
}
