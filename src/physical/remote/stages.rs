//! Which parts of a plan could run in other processes: what is made of the tasks of one read, or of some of what an
//! exchange between executors gives, each by itself.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use super::exchange::{RemoteExchangeExec, SchemeInOrder, StageExchange};
use super::parts::{brings_together, collects_left, exchange_at, source_of, stage_inputs};
use crate::functions::{Compute, Workers};
use crate::physical::exchange::{Distributed, ExchangeExec};
use crate::physical::join::equi_join;
use crate::physical::operator::{Operator, PlanExt};
use crate::physical::read::file_scan;
use crate::physical::said::said;
use crate::physical::{
    BucketJoinExec, CompactExec, CumulativeWindowsExec, FlushExec, FoldExec, GroupTopKExec, MapExec, MapStep,
    QueueExec, ReadExec, RollUpExec, SortInMemoryExec, WindowPartitionsExec, WriteTasksExec,
};

/// Whether a plan is a stage that is worth to run elsewhere: not where rows would only be counted up there.
pub(crate) fn is_worthwhile(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let counts_up = plan.operator::<ReadExec>().is_some_and(|read| file_scan(read.scan()).is_none());
    !counts_up && !plan.is::<SortExec>() && is_stage(plan)
}

/// Whether the rows of a plan are made of the tasks of one read, which another process that has planned the same can
/// read as well, and of each of them alone; or likewise of what executors exchange.
pub(crate) fn is_stage(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(map) = actors(plan) {
        return said_of_steps(map).is_some() && is_stage(map.input());
    }
    if let Some(read) = plan.operator::<ReadExec>() {
        return said_alone(plan).is_some() && read.num_tasks() > 0;
    }
    let any_thread_runs_it = plan.operator::<MapExec>().is_none_or(|map| tasks_at_once(map.compute()).is_some());
    any_thread_runs_it
        && draws_as_before(plan)
        && !plan.is_operator::<QueueExec>()
        && has_its_rows(plan)
        && said_alone(plan).is_some()
        && stage_inputs(plan).into_iter().all(is_stage)
}

/// Whether an operator draws the same rows whenever it runs: by the places that rows have in tasks of a read.
fn draws_as_before(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.operator::<MapExec>()
        .is_none_or(|map| is_repeatable(map.input()) || !map.steps().iter().any(|step| step.is_random()))
}

/// Whether what an operator makes of some tasks is part of what it makes of all of them: not of groups or pairs of
/// rows, of which others have some, unless an exchange has brought them together.
fn has_its_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(exchange) = StageExchange::of(plan) {
        let input = exchange.input();
        // Places of rows are those that they have in tasks.
        let has_places = exchange.scheme().is_none() || is_repeatable(input);
        // What is below runs as all executors have room for it.
        return has_places && at_once(input) == usize::MAX && !has_actors(input);
    }
    if plan.is_operator::<ExchangeExec>() {
        return false;
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return *aggregate.mode() == AggregateMode::Partial || is_exchanged(aggregate.input());
    }
    if plan.is::<RepartitionExec>() || brings_together(plan) {
        return exchange_at(plan).is_some();
    }
    if plan.is::<SortExec>() || windows_of(plan).is_some() {
        return !gives_first_rows(plan) && plan.children().into_iter().all(has_whole_partitions);
    }
    let Some(join) = equi_join(plan) else { return true };
    if collects_left(plan).is_none() || is_exchanged(join.left()) {
        return [join.left(), join.right()].into_iter().all(is_exchanged);
    }
    let is_there = || exchange_at(join.left()).is_some_and(RemoteExchangeExec::is_whole) || is_whole(join.left());
    gives_no_left_rows(*join.join_type()) && is_there()
}

/// Whether a join gives no row of the left side by itself: one that nobody has found here may be found elsewhere.
pub(crate) fn gives_no_left_rows(join_type: JoinType) -> bool {
    matches!(
        join_type,
        JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
    )
}

/// What an operator evaluates that evaluates windows.
fn windows_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn WindowExpr>]> {
    let of_datafusion = || match (plan.downcast_ref::<WindowAggExec>(), plan.downcast_ref::<BoundedWindowAggExec>()) {
        (Some(window), _) => Some(window.window_expr()),
        (_, Some(window)) => Some(window.window_expr()),
        (None, None) => None,
    };
    let partitions = || plan.operator::<WindowPartitionsExec>().map(WindowPartitionsExec::windows);
    plan.operator::<CumulativeWindowsExec>()
        .map(CumulativeWindowsExec::windows)
        .or_else(partitions)
        .or_else(of_datafusion)
}

/// Whether an operator evaluates windows.
pub(crate) fn evaluates_windows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    windows_of(plan).is_some()
}

/// Whether windows are evaluated above the next exchanges between executors.
pub(super) fn has_windows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    StageExchange::of(plan).is_none() && (evaluates_windows(plan) || plan.children().into_iter().any(has_windows))
}

/// Whether operators hand on the rows of each partition of their input, with others beside them or without some.
pub(crate) fn keeps_partitions(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let sorts =
        plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.preserve_partitioning() && sort.fetch().is_none());
    sorts
        || windows_of(plan).is_some()
        || plan.is::<ProjectionExec>()
        || plan.downcast_ref::<FilterExec>().is_some_and(|filter| filter.fetch().is_none())
        || plan.is_operator::<CompactExec>()
        || plan.is_operator::<SortInMemoryExec>()
}

/// Whether the partitions of a plan have all rows of the keys by which they were dealt out, since executors have
/// exchanged them by these.
fn has_whole_partitions(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.children().as_slice() {
        _ if exchange_at(plan).is_some() => is_exchanged(plan),
        [below] if keeps_partitions(plan) => has_whole_partitions(below),
        [below] => {
            let groups = plan.downcast_ref::<AggregateExec>().map(AggregateExec::mode);
            matches!(groups, Some(AggregateMode::FinalPartitioned | AggregateMode::SinglePartitioned))
                && is_exchanged(below)
        }
        _ => false,
    }
}

/// Whether executors have exchanged the rows of an input by keys.
pub(crate) fn is_exchanged(input: &Arc<dyn ExecutionPlan>) -> bool {
    exchange_at(input).is_some_and(|exchange| !exchange.is_whole())
}

/// Whether other processes that have planned the same have all rows of a plan when they run it, and each the same rows:
/// not sums or first values of rows that come as they come.
pub(crate) fn is_whole(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_plain = !plan.is_operator::<QueueExec>()
        && !plan.is_operator::<RemoteExchangeExec>()
        && plan.downcast_ref::<SortExec>().is_none()
        && plan.operator::<MapExec>().is_none_or(|map| tasks_at_once(map.compute()).is_some())
        && draws_as_before(plan)
        && plan.downcast_ref::<AggregateExec>().is_none_or(|groups| groups.aggr_expr().is_empty());
    if plan.is_operator::<ReadExec>() {
        return said_alone(plan).is_some();
    }
    is_plain && said_alone(plan).is_some() && plan.children().into_iter().all(is_whole)
}

/// Whether a plan gives the first rows of each partition of a stage in some order.
pub(crate) fn is_first_rows_of_stage(plan: &Arc<dyn ExecutionPlan>) -> bool {
    gives_first_rows(plan) && said_alone(plan).is_some() && plan.children().into_iter().all(is_stage)
}

/// All that decides what an operator of a stage makes of the rows below it, but for the files of a read; none where it
/// is not one of those that a stage may have.
pub(super) fn said_alone(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    if let Some(read) = plan.operator::<ReadExec>() {
        let projected = file_scan(read.scan()).and_then(|scan| scan.file_source.projection());
        let exprs = projected.into_iter().flat_map(|all| all.as_ref()).map(|projected| &projected.expr);
        return Some(format!("{} {}", read.call()?, said(exprs)?));
    }
    if let Some(map) = plan.operator::<MapExec>() {
        return said_of_steps(map);
    }
    if plan.is_operator::<QueueExec>() || passes_rows(plan) {
        return Some(plan.name().to_owned());
    }
    if let Some(sets) = plan.operator::<RollUpExec>() {
        return Some(sets.said());
    }
    if let Some(top) = plan.operator::<GroupTopKExec>() {
        return top.top().said();
    }
    if let Some(exchange) = plan.operator::<RemoteExchangeExec>() {
        return said(exchange.keys()).map(|keys| format!("{} {keys}", exchange.is_whole()));
    }
    if let Some(exchange) = plan.operator::<ExchangeExec>() {
        return said(exchange.scheme().keys()).map(|keys| format!("{} {keys}", exchange.scheme()));
    }
    if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
        let Partitioning::Hash(keys, partitions) = repartition.partitioning() else { return None };
        return (!repartition.preserve_order()).then_some(format!("{partitions} {}", said(keys)?));
    }
    if let Some(join) = equi_join(plan) {
        return said_of_join(plan, join);
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return Some(format!("{} {:?}", said([filter.predicate()])?, filter.projection()));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return said(projection.expr().iter().map(|projected| &projected.expr));
    }
    if let Some(write) = plan.operator::<WriteTasksExec>() {
        return write.files().said();
    }
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        return said(sort.expr().iter().map(|key| &key.expr));
    }
    if let Some(windows) = windows_of(plan) {
        return windows.iter().map(said_of_window).collect();
    }
    plan.downcast_ref::<AggregateExec>().and_then(said_of_groups)
}

/// Whether an operator only hands on rows.
fn passes_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    brings_together(plan)
        || plan.is_operator::<CompactExec>()
        || plan.is_operator::<FlushExec>()
        || plan.is_operator::<FoldExec>()
        || plan.is_operator::<SortInMemoryExec>()
}

/// All that decides what a join makes of its sides. What one process knows of all rows, as whether there is any null
/// among them, another does not.
fn said_of_join(plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) -> Option<String> {
    let tells = plan.operator::<BucketJoinExec>().is_some_and(BucketJoinExec::tells);
    if join.null_aware || tells || !join.dynamic_expressions_produced().is_empty() || plan.fetch().is_some() {
        return None;
    }
    let keys = said(join.on().iter().flat_map(|(left, right)| [left, right]))?;
    let filter = join.filter().map(|filter| {
        let columns = (filter.column_indices(), filter.schema());
        said([filter.expression()]).map(|said| format!("{said} {columns:?}"))
    });
    let filter = match filter {
        Some(filter) => filter?,
        None => String::new(),
    };
    let how = (join.join_type(), join.partition_mode(), join.null_equality(), &join.projection);
    Some(format!("{keys} {filter} {how:?}"))
}

/// All that decides what steps do, where they do the same whenever they run.
fn said_of_steps(map: &MapExec) -> Option<String> {
    let said = |step: &Arc<dyn MapStep>| step.said().filter(|_| step.is_deterministic());
    map.steps().iter().map(said).collect()
}

/// The same of a window.
fn said_of_window(window: &Arc<dyn WindowExpr>) -> Option<String> {
    let keys = window.partition_by().iter().chain(window.order_by().iter().map(|key| &key.expr));
    let arguments = window.expressions();
    Some(format!("{} {} {window:?}", said(keys)?, said(&arguments)?))
}

/// The same of an aggregate.
fn said_of_groups(aggregate: &AggregateExec) -> Option<String> {
    if aggregate.limit_options().is_some() {
        return None;
    }
    let groups = aggregate.group_expr();
    let keys = said(groups.expr().iter().chain(groups.null_expr()).map(|(expr, _)| expr))?;
    let mut text = format!("{:?} {keys} {:?}", aggregate.mode(), groups.groups());
    for (function, filter) in aggregate.aggr_expr().iter().zip(aggregate.filter_expr()) {
        let (arguments, order) = (function.expressions(), function.order_bys());
        let exprs = arguments.iter().chain(order.iter().map(|key| &key.expr)).chain(filter);
        let how = (function.is_distinct(), function.ignore_nulls(), function.is_reversed(), filter.is_some());
        let directions: Vec<_> = order.iter().map(|key| key.options).collect();
        text.push_str(&format!(
            "{} {:?} {how:?} {directions:?} {}",
            function.fun().name(),
            function.field(),
            said(exprs)?
        ));
    }
    Some(text)
}

/// The steps that actors run, where a plan is a queue behind such.
fn actors(plan: &Arc<dyn ExecutionPlan>) -> Option<&MapExec> {
    let queue = plan.operator::<QueueExec>()?;
    let map = queue.inputs().into_iter().find_map(|input| input.operator::<MapExec>())?;
    let (compute, is_limited) = (map.compute(), queue.limit().is_some());
    let are_actors = matches!(compute.workers, Workers::Actors(_)) && compute.needs_nothing_special();
    (are_actors && !is_limited).then_some(map)
}

/// Whether a stage has actors, so that what it has to build first is worth several tasks.
pub(super) fn has_actors(stage: &Arc<dyn ExecutionPlan>) -> bool {
    actors(stage).is_some() || !stage.is_operator::<ReadExec>() && stage_inputs(stage).into_iter().any(has_actors)
}

/// Whether it gives the first rows of each partition in some order, for others to take the first of.
fn gives_first_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_some() && sort.preserve_partitioning())
}

/// How many tasks may run at once, where these are tasks that any thread can run; no bound is a bound of none.
fn tasks_at_once(compute: &Compute) -> Option<usize> {
    match compute.workers {
        Workers::Tasks(most) if compute.needs_nothing_special() => Some(most.unwrap_or(usize::MAX)),
        Workers::Tasks(_) | Workers::Actors(_) => None,
    }
}

/// How many tasks of a stage may run at once.
pub(super) fn at_once(stage: &Arc<dyn ExecutionPlan>) -> usize {
    let most = stage.operator::<MapExec>().and_then(|map| tasks_at_once(map.compute())).unwrap_or(usize::MAX);
    match stage.is_operator::<ReadExec>() {
        true => most,
        false => stage_inputs(stage).into_iter().map(at_once).fold(most, usize::min),
    }
}

/// Whether each task of a stage gives the same rows in the same order whenever it runs: not where rows of several
/// come together, or are found in a table, or tell of files.
pub(super) fn is_repeatable(stage: &Arc<dyn ExecutionPlan>) -> bool {
    let is_steady = |scheme: &SchemeInOrder| scheme.distributed().is_ok_and(Distributed::is_steady);
    let mut exchanges = source_of(stage).exchanges.into_iter();
    exchanges.all(|exchange| exchange.scheme.as_ref().is_some_and(is_steady)) && has_no_table(stage)
}

/// Whether the tasks of a stage are those of one process, with the rows that they have there.
pub(super) fn has_own_tasks(stage: &Arc<dyn ExecutionPlan>) -> bool {
    source_of(stage).exchanges.iter().all(|exchange| exchange.scheme.is_some()) && has_no_table(stage)
}

fn has_no_table(stage: &Arc<dyn ExecutionPlan>) -> bool {
    equi_join(stage).is_none()
        && !stage.is::<AggregateExec>()
        && !stage.is_operator::<WriteTasksExec>()
        && (stage.is_operator::<ReadExec>() || stage.children().into_iter().all(has_no_table))
}
