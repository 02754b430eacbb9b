//! Which parts of a plan could run in other processes: what is made of the tasks of one read, each by itself.

use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::functions::{Compute, Workers};
use crate::physical::operator::{IntoPlan, Operator, PlanExt};
use crate::physical::read::file_scan;
use crate::physical::{MapExec, QueueExec, ReadExec};

/// Whether a plan is a stage that is worth to run elsewhere: not where rows would only be counted up there.
pub(crate) fn is_worthwhile(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let counts_up = plan.operator::<ReadExec>().is_some_and(|read| file_scan(read.scan()).is_none());
    !counts_up && is_stage(plan)
}

/// Whether the rows of a plan are made of the tasks of one read, which another process that has planned the same can
/// read as well, and of each of them alone.
pub(crate) fn is_stage(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(read) = plan.operator::<ReadExec>() {
        return read.call().is_some() && read.num_tasks() > 0;
    }
    if let Some(map) = actors(plan) {
        return steps_are_said(map) && plan.children().into_iter().all(is_known_before) && is_stage(map.input());
    }
    let works_on_rows_alone = match plan.operator::<MapExec>() {
        Some(map) => tasks_at_once(map.compute()).is_some() && steps_are_said(map),
        None => is_aggregate_of_part(plan) || plan.is::<FilterExec>() || plan.is::<ProjectionExec>(),
    };
    works_on_rows_alone && is_known_before(plan) && plan.children().into_iter().all(is_stage)
}

/// Whether other processes know what the steps do, and they do the same whenever they run.
fn steps_are_said(map: &MapExec) -> bool {
    map.steps().iter().all(|step| step.is_deterministic() && step.said().is_some())
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

/// Whether it groups what there is, for another aggregate to go on.
fn is_aggregate_of_part(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let aggregate = plan.downcast_ref::<AggregateExec>();
    aggregate.is_some_and(|a| *a.mode() == AggregateMode::Partial && a.limit_options().is_none())
}

/// Whether it gives the first rows of each partition in some order, for others to take the first of.
pub(crate) fn gives_first_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_some() && sort.preserve_partitioning())
}

/// Whether all that its expressions say is known when it is planned: neither drawn for each row, nor the result of
/// another plan.
fn is_known_before(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut known = true;
    let looked = plan.apply_expressions(&mut |expr| {
        let mut see = |expr: &Arc<dyn PhysicalExpr>| {
            known &= !expr.is_volatile_node() && expr.downcast_ref::<ScalarSubqueryExpr>().is_none();
            Ok(TreeNodeRecursion::Continue)
        };
        expr.apply(&mut see)
    });
    known && looked.is_ok()
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
