//! Plans that work on less at once, for limits in which all of it does not fit.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::OrderingRequirements;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use super::{MapExec, PlanMemory, ReadExec, TurnsExec};

/// The plan as it is, or the first of these that can run within `limit` bytes, with at most `most_rows` per batch: the
/// inputs of its unions one after the other, and its reads with half of their streams, a quarter of them, one. Where
/// none can, the last.
pub(crate) fn fitted(plan: Arc<dyn ExecutionPlan>, limit: usize, most_rows: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let fits = |plan: &Arc<dyn ExecutionPlan>| {
        // Smaller batches than the limit asks for may be what lets it run.
        PlanMemory::of(plan.as_ref(), limit, most_rows).least_bytes() <= limit
            || PlanMemory::least_of(plan.as_ref(), most_rows).least_bytes() <= limit
    };
    if fits(&plan) {
        return Ok(plan);
    }
    let mut plan = unions_in_turn(plan)?;
    let mut streams = most_streams(&plan);
    while streams > 1 && !fits(&plan) {
        streams /= 2;
        plan = reads_by(plan, streams)?;
    }
    Ok(plan)
}

/// The plan as it works on the least at once.
pub(crate) fn in_least_memory(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    fitted(plan, 0, 1)
}

/// The inputs of unions one after the other, unless somebody counts on the order that each of them has.
fn unions_in_turn(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let in_turn = |node: Arc<dyn ExecutionPlan>| {
        if !node.is::<UnionExec>() {
            return Ok(Transformed::no(node));
        }
        let inputs = node.children().into_iter().map(|input| one_task_at_once(Arc::clone(input)));
        let union = UnionExec::try_new(inputs.collect::<Result<_>>()?)?;
        Ok(Transformed::yes(Arc::new(TurnsExec::new(union)) as _))
    };
    let turned = Arc::clone(&plan).transform_up(in_turn).data()?;
    Ok(if orders_hold(&turned)? { turned } else { plan })
}

/// An input of which one task is asked for after the other: a read has no more of them open.
fn one_task_at_once(input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(read) = input.downcast_ref::<ReadExec>() {
        return Ok(Arc::new(read.with_streams(1)));
    }
    match input.children().as_slice() {
        [below] if input.is::<MapExec>() => {
            let below = one_task_at_once(Arc::clone(below))?;
            replace_children_if_necessary(input, vec![below])
        }
        _ => Ok(input),
    }
}

/// Whether every operator gets rows in the order that it requires.
fn orders_hold(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut hold = true;
    plan.apply(|node| {
        for (child, required) in node.children().into_iter().zip(node.required_input_ordering()) {
            let Some((alternatives, is_wish)) = required.map(OrderingRequirements::into_alternatives) else {
                continue;
            };
            let known = child.equivalence_properties();
            let satisfied = alternatives.into_iter().map(|order| known.ordering_satisfy_requirement(order));
            hold &= is_wish || satisfied.collect::<Result<Vec<_>>>()?.contains(&true);
        }
        Ok(if hold { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(hold)
}

/// The most streams of a read.
fn most_streams(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.downcast_ref::<ReadExec>().map_or(1, ReadExec::streams);
    plan.children().into_iter().map(most_streams).fold(own, usize::max)
}

/// All reads with at most so many streams.
fn reads_by(plan: Arc<dyn ExecutionPlan>, streams: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let fewer = |node: Arc<dyn ExecutionPlan>| {
        Ok(match node.downcast_ref::<ReadExec>().filter(|read| read.streams() > streams) {
            Some(read) => Transformed::yes(Arc::new(read.with_streams(streams)) as _),
            None => Transformed::no(node),
        })
    };
    plan.transform_up(fewer).data()
}
