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
//!
//! Where an exchange gives all rows to each task, these may begin with a read beside it.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::exchange::{RemoteExchangeExec, SchemeInOrder, StageExchange};
use crate::physical::operator::{IntoPlan, PlanExt};
use crate::physical::{CompactExec, FlushExec, FoldExec, GatherExec, GroupTopKExec, Operator, ReadExec, RollUpExec};

/// What the tasks of a stage begin with.
#[derive(Debug, Clone, Default)]
pub(crate) struct StageSource {
    /// The tasks of its read. Where it has none, there are tasks when all rows have been exchanged.
    pub(crate) tasks: Option<Range<usize>>,
    /// What executors exchange below it.
    pub(crate) exchanges: Vec<ExchangeSource>,
}

/// An exchange below a stage.
#[derive(Debug, Clone)]
pub(crate) struct ExchangeSource {
    /// Which of the exchanges of the whole plan it is.
    pub(crate) number: usize,
    /// Whether each task gets all rows.
    pub(crate) is_whole: bool,
    /// Whether its rows are parts of groups, of which there may be more or fewer when they are made again.
    pub(crate) has_parts_of_groups: bool,
    /// What gives rows to tasks, where these have them in an order.
    pub(crate) scheme: Option<SchemeInOrder>,
    /// What the tasks begin with whose rows are exchanged.
    pub(crate) input: StageSource,
}

/// Some of the tasks of a stage.
pub(crate) struct Part<'a> {
    /// Those of its read, if it has one.
    pub(crate) tasks: Option<Range<usize>>,
    /// Gives the rows that the exchange of a number has for them.
    pub(crate) exchanged: &'a dyn Fn(usize) -> Result<Arc<dyn ExecutionPlan>>,
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

/// Whether a join has all of its left side wherever some of its right one is, and makes it there.
pub(super) fn makes_a_side_whole(plan: &Arc<dyn ExecutionPlan>) -> bool {
    collects_left(plan).is_some_and(|join| exchange_at(join.left()).is_none())
}

/// A join that has all of its left side wherever some of its right one is.
pub(super) fn collects_left(plan: &Arc<dyn ExecutionPlan>) -> Option<&HashJoinExec> {
    plan.downcast_ref::<HashJoinExec>().filter(|join| *join.partition_mode() == PartitionMode::CollectLeft)
}

/// The exchange between executors that gives the rows of an input, which are only handed on or dealt out above it.
pub(super) fn exchange_at(input: &Arc<dyn ExecutionPlan>) -> Option<&RemoteExchangeExec> {
    if let Some(exchange) = input.operator::<RemoteExchangeExec>() {
        return Some(exchange);
    }
    match input.children().as_slice() {
        [below] if hands_on(input) => exchange_at(below),
        _ => None,
    }
}

/// Whether an operator only hands on the rows of its input, to other threads.
fn hands_on(plan: &Arc<dyn ExecutionPlan>) -> bool {
    brings_together(plan) || plan.is::<RepartitionExec>() || plan.is_operator::<CompactExec>()
}

/// Whether an operator brings all rows to one thread.
pub(super) fn brings_together(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<CoalescePartitionsExec>() || plan.operator::<GatherExec>().is_some_and(|gather| gather.fetch().is_none())
}

/// The inputs of an operator that have the tasks of its stage. What else it reads, it reads whole.
pub(super) fn stage_inputs(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<dyn ExecutionPlan>> {
    let mut inputs = plan.children();
    if makes_a_side_whole(plan) {
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
        return StageSource { tasks: Some(read.tasks_left()), exchanges: Vec::new() };
    }
    if let Some(exchange) = StageExchange::of(stage) {
        let number = *next;
        *next += 1;
        let (is_whole, has_parts_of_groups) = (exchange.is_whole(), gives_parts_of_groups(exchange.input()));
        let (scheme, input) = (exchange.scheme(), source_from(exchange.input(), next));
        let exchange = ExchangeSource { number, is_whole, has_parts_of_groups, scheme, input };
        return StageSource { tasks: None, exchanges: vec![exchange] };
    }
    let mut all = StageSource::default();
    for input in stage_inputs(stage) {
        let StageSource { tasks, exchanges } = source_from(input, next);
        all.tasks = all.tasks.or(tasks);
        all.exchanges.extend(exchanges);
    }
    all
}

/// Whether rows are parts of groups, for another aggregate to go on.
fn gives_parts_of_groups(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.children().as_slice() {
        [below] if hands_on(plan) || plan.is_operator::<FlushExec>() => gives_parts_of_groups(below),
        _ if plan.is_operator::<RollUpExec>() || plan.is_operator::<GroupTopKExec>() => true,
        _ => plan.downcast_ref::<AggregateExec>().is_some_and(|groups| *groups.mode() == AggregateMode::Partial),
    }
}

/// The exchange of a number, counted as in [`source_of`].
pub(crate) fn exchange_of(stage: &Arc<dyn ExecutionPlan>, number: usize) -> Option<StageExchange<'_>> {
    exchange_from(stage, &mut 0, number)
}

fn exchange_from<'a>(stage: &'a Arc<dyn ExecutionPlan>, next: &mut usize, number: usize) -> Option<StageExchange<'a>> {
    if stage.is_operator::<ReadExec>() {
        return None;
    }
    if let Some(exchange) = StageExchange::of(stage) {
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
    usize::from(StageExchange::of(stage).is_some()) + below
}

/// A stage of some of its tasks alone, one after the other. `first` is the number of its first exchange.
pub(crate) fn of_part(stage: &Arc<dyn ExecutionPlan>, first: usize, part: &Part<'_>) -> Result<Arc<dyn ExecutionPlan>> {
    part_from(stage, &mut Next { exchange: first, whole: 0 }, part)
}

fn part_from(plan: &Arc<dyn ExecutionPlan>, next: &mut Next, part: &Part<'_>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(read) = plan.operator::<ReadExec>() {
        let Some(tasks) = part.tasks.clone() else { return internal_err!("{} has tasks of its own", plan.name()) };
        return Ok(read.of_tasks(tasks).with_streams(1).into_plan());
    }
    if StageExchange::of(plan).is_some() {
        let number = next.exchange;
        next.exchange += num_exchanges(plan);
        return (part.exchanged)(number);
    }
    // One thread has all rows of a part.
    let deals_out = plan.is::<RepartitionExec>() || plan.is_operator::<FoldExec>();
    if let (true, [input]) = (deals_out, plan.children().as_slice()) {
        return part_from(input, next, part);
    }
    let makes_a_side_whole = makes_a_side_whole(plan);
    let inputs = plan.children().into_iter().enumerate().map(|(number, input)| match (makes_a_side_whole, number) {
        (true, 0) => {
            next.whole += 1;
            (part.whole)(next.whole, input)
        }
        _ => part_from(input, next, part),
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(plan), inputs)
}
