//! Which parts of a plan could run in other processes: what is made of the tasks of one read, each by itself.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::functions::{Compute, Workers};
use crate::physical::operator::{IntoPlan, Operator, PlanExt};
use crate::physical::read::file_scan;
use crate::physical::said::said;
use crate::physical::{MapExec, MapStep, QueueExec, ReadExec};

/// Whether a plan is a stage that is worth to run elsewhere: not where rows would only be counted up there.
pub(crate) fn is_worthwhile(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let counts_up = plan.operator::<ReadExec>().is_some_and(|read| file_scan(read.scan()).is_none());
    !counts_up && is_stage(plan)
}

/// Whether the rows of a plan are made of the tasks of one read, which another process that has planned the same can
/// read as well, and of each of them alone.
pub(crate) fn is_stage(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(map) = actors(plan) {
        return said_of_steps(map).is_some() && is_stage(map.input());
    }
    if let Some(read) = plan.operator::<ReadExec>() {
        return said_alone(plan).is_some() && read.num_tasks() > 0;
    }
    let any_thread_runs_it = plan.operator::<MapExec>().is_none_or(|map| tasks_at_once(map.compute()).is_some());
    let gives_all_as_they_come = !plan.is_operator::<QueueExec>() && plan.downcast_ref::<SortExec>().is_none();
    any_thread_runs_it
        && gives_all_as_they_come
        && said_alone(plan).is_some()
        && plan.children().into_iter().all(is_stage)
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
    if plan.is_operator::<QueueExec>() {
        return Some(String::new());
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return Some(format!("{} {:?}", said([filter.predicate()])?, filter.projection()));
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return said(projection.expr().iter().map(|projected| &projected.expr));
    }
    if gives_first_rows(plan) {
        let sort = plan.downcast_ref::<SortExec>()?;
        return said(sort.expr().iter().map(|key| &key.expr));
    }
    plan.downcast_ref::<AggregateExec>().and_then(said_of_part)
}

/// All that decides what steps do, where they do the same whenever they run.
fn said_of_steps(map: &MapExec) -> Option<String> {
    let said = |step: &Arc<dyn MapStep>| step.said().filter(|_| step.is_deterministic());
    map.steps().iter().map(said).collect()
}

/// The same of an aggregate that groups what there is, for another one to go on.
fn said_of_part(aggregate: &AggregateExec) -> Option<String> {
    if *aggregate.mode() != AggregateMode::Partial || aggregate.limit_options().is_some() {
        return None;
    }
    let groups = aggregate.group_expr();
    let keys = said(groups.expr().iter().chain(groups.null_expr()).map(|(expr, _)| expr))?;
    let mut text = format!("{keys} {:?}", groups.groups());
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
    actors(stage).is_some() || !stage.is_operator::<ReadExec>() && stage.children().into_iter().any(has_actors)
}

/// Whether it gives the first rows of each partition in some order, for others to take the first of.
fn gives_first_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_some() && sort.preserve_partitioning())
}

/// A stage of some of its tasks alone, read one after the other.
pub(crate) fn of_tasks(stage: Arc<dyn ExecutionPlan>, tasks: Range<usize>) -> Result<Arc<dyn ExecutionPlan>> {
    let rewrite = |node: Arc<dyn ExecutionPlan>| {
        let Some(read) = node.operator::<ReadExec>() else { return Ok(Transformed::no(node)) };
        let some = read.of_tasks(tasks.clone()).with_streams(1).into_plan();
        // What a read scans belongs to it.
        Ok(Transformed::new(some, true, TreeNodeRecursion::Jump))
    };
    stage.transform_down(rewrite).data()
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
        false => stage.children().into_iter().map(at_once).fold(most, usize::min),
    }
}

/// The numbers of the tasks that a stage runs.
pub(super) fn tasks_of(stage: &Arc<dyn ExecutionPlan>) -> Range<usize> {
    match stage.operator::<ReadExec>() {
        Some(read) => read.tasks_left(),
        None => stage.children().first().map_or(0..0, |input| tasks_of(input)),
    }
}
