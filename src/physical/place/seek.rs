//! Finding places, and beginning at them.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::value::Mark;
use crate::block::TaskId;
use crate::physical::operator::TaskIdentity;
use crate::physical::tasks::{as_task_plan, is_one_task, is_ordered, steady_parts, ungathered};
use crate::token::Place;

/// The place of a row, as [`super::marked_rows`] marks it. `None` where no such row has come out of the plan.
pub(crate) fn place_of(plan: &Arc<dyn ExecutionPlan>, mark: &Mark) -> Option<Place> {
    match seeks(plan) {
        Ok(()) => place_in(ungathered(plan), mark),
        Err(_) => Some(Place::replayed(mark.row)),
    }
}

fn place_in(plan: &Arc<dyn ExecutionPlan>, mark: &Mark) -> Option<Place> {
    if is_union(plan.as_ref()) {
        let (branch, id) = mark.id.out_of()?;
        let input = *plan.children().get(branch as usize)?;
        let place = place_of(input, &Mark { id, row: mark.row })?;
        let (first_row, skip) = (place.first_row, place.skip);
        return Some(Place { numbers: vec![u64::from(branch)], inputs: vec![place], first_row, skip });
    }
    if let Some(input) = computed_from(plan) {
        return place_of(input, mark);
    }
    let operator = as_task_plan(plan.as_ref())?;
    match operator.identity() {
        TaskIdentity::OfInput { input, .. } if operator.keeps_row_numbers() => place_in(input, mark),
        TaskIdentity::OfInput { input, .. } => {
            // Nobody knows how many rows of the input are behind so many of these, so its task begins anew.
            let begin = place_in(input, &Mark { id: mark.id.clone(), row: 0 })?;
            Some(Place { skip: mark.row, ..begin })
        }
        _ => operator.place_of(mark),
    }
}

/// The same plan from a place on.
pub(crate) fn begun_at(plan: &Arc<dyn ExecutionPlan>, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = ungathered(plan);
    if place.is_replayed() {
        return Ok(Arc::clone(plan));
    }
    if is_union(plan.as_ref()) {
        let (Some(branch), Some(inside)) = (place.numbers.first(), place.inputs.first()) else {
            return unfit(plan.as_ref());
        };
        let begun = |(number, input): (usize, &Arc<dyn ExecutionPlan>)| match (number as u64).cmp(branch) {
            // What has been read keeps its number, and has no rows.
            std::cmp::Ordering::Less => Ok(Arc::new(EmptyExec::new(input.schema())) as Arc<dyn ExecutionPlan>),
            std::cmp::Ordering::Equal => begun_at(input, inside),
            std::cmp::Ordering::Greater => Ok(Arc::clone(input)),
        };
        let inputs = plan.children().into_iter().enumerate().map(begun).collect::<Result<Vec<_>>>()?;
        return replace_children_if_necessary(Arc::clone(plan), inputs);
    }
    if let Some(input) = computed_from(plan) {
        return replace_children_if_necessary(Arc::clone(plan), vec![begun_at(input, place)?]);
    }
    let Some(operator) = as_task_plan(plan.as_ref()) else { return unfit(plan.as_ref()) };
    match operator.identity() {
        TaskIdentity::OfInput { input, .. } => {
            replace_children_if_necessary(Arc::clone(plan), vec![begun_at(input, place)?])
        }
        _ => operator.begun_at(place),
    }
}

/// The task that a place is in, where the place says so. It may have no more rows.
pub(super) fn first_task(plan: &Arc<dyn ExecutionPlan>, place: &Place) -> Option<TaskId> {
    let plan = ungathered(plan);
    if is_union(plan.as_ref()) {
        let (branch, inside) = (*place.numbers.first()? as usize, place.inputs.first()?);
        let task = plan.children().get(branch).and_then(|input| first_task(input, inside));
        return Some(task.map_or_else(|| TaskId::root(branch), |task| task.within(branch)));
    }
    if let Some(input) = computed_from(plan) {
        return first_task(input, place);
    }
    let operator = as_task_plan(plan.as_ref())?;
    match operator.identity() {
        TaskIdentity::OfInput { input, .. } => first_task(input, place),
        _ => operator.task_of(place),
    }
}

fn unfit<T>(plan: &dyn ExecutionPlan) -> Result<T> {
    exec_err!("the place is not one of {}", plan.name())
}

/// Whether tasks of a plan are those of its inputs, with the number of the input before theirs.
fn is_union(plan: &dyn ExecutionPlan) -> bool {
    let turns = as_task_plan(plan).is_some_and(|plan| matches!(plan.identity(), TaskIdentity::OfInputs));
    turns || plan.is::<UnionExec>()
}

/// The input of a projection of DataFusion, whose rows are those of one task as the rows of its input are.
fn computed_from(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    let projection = plan.downcast_ref::<ProjectionExec>()?;
    Some(projection.input()).filter(|input| is_one_task(ungathered(input)))
}

/// The first operator that reads all of its input again wherever a plan begins, of a plan that can begin at a row in
/// its middle.
pub(crate) fn reads_again(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let plan = ungathered(plan);
    let operator = as_task_plan(plan.as_ref());
    if operator.is_some_and(|operator| operator.reads_all_again()) {
        return operator.map(|operator| operator.stage_name());
    }
    let begins_itself = operator.is_some_and(|operator| operator.begins_anywhere() && !operator.begins_with_inputs());
    let inputs = if begins_itself { 0 } else { operator.map_or(usize::MAX, |operator| operator.inputs_with_rows()) };
    plan.children().into_iter().take(inputs).find_map(reads_again)
}

/// Whether a plan can begin at a row in its middle. The error is the operator that has to begin anew.
pub(crate) fn seeks(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<(), String> {
    let plan = ungathered(plan);
    let name = || as_task_plan(plan.as_ref()).map_or_else(|| plan.name().to_owned(), |plan| plan.stage_name());
    if steady_parts(plan).is_none() || !is_ordered(plan.as_ref()) {
        return Err(name());
    }
    if is_union(plan.as_ref()) {
        return plan.children().into_iter().try_for_each(seeks);
    }
    if let Some(input) = computed_from(plan) {
        return seeks(input);
    }
    let Some(operator) = as_task_plan(plan.as_ref()) else { return Err(name()) };
    match operator.identity() {
        TaskIdentity::OfInput { input, .. } => seeks(input),
        _ if operator.begins_anywhere() && !operator.begins_with_inputs() => Ok(()),
        _ if operator.begins_anywhere() => {
            plan.children().into_iter().take(operator.inputs_with_rows()).try_for_each(seeks)
        }
        _ => Err(name()),
    }
}
