//! Plans that would be refused, because they work on more at once than the limit has room for, work on less at once:
//! pipelines make no window while another one is taken, the inputs of a union come one after the other, and fewer
//! streams of a read have a row group open. Inputs come one after the other, too, where so many of them sort or shuffle
//! that little of the memory would be left for each.
//!
//! Correct because streams of a read pull their tasks from one queue, and because the tasks of a union are the same in
//! whatever order they run. It comes after all rules that add operators, whose needs it counts.
//!
//! ```text
//! UnionExec                            TurnsExec
//!   ReadExec: ReadParquet, tasks=4  ->   ReadExec: ReadParquet, tasks=4, streams=1
//!   ReadExec: ReadParquet, tasks=4       ReadExec: ReadParquet, tasks=4, streams=1
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::OrderingRequirements;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{
    IntoPlan, MapExec, PipelineExec, PlanExt, PlanMemory, ReadExec, TurnsExec, builders_at_once, uses_ours,
};

/// A stage that builds blocks, or sorts them, should have so many bytes.
const BUILDER_BYTES: usize = 64 << 20;
/// So many of them may always work at once: less would not be faster, and rows of their tasks are few.
const MIN_BUILDERS: usize = 4;

#[derive(Debug)]
pub(super) struct FitMemory;

impl PhysicalOptimizerRule for FitMemory {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !uses_ours(&plan) {
            return Ok(plan);
        }
        fitted(plan, BlockyardOptions::from_config(config).memory_limit.bytes(), config.execution.batch_size.get())
    }

    fn name(&self) -> &str {
        "fit_memory"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan as it is, or the first of these that can run within `limit` bytes, with at most `max_rows` per batch: one
/// window of its pipelines at a time, the inputs of its unions one after the other, and its reads with half of their
/// streams, a quarter of them, one. Where none can, the last.
fn fitted(plan: Arc<dyn ExecutionPlan>, limit: usize, max_rows: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let fits = |plan: &Arc<dyn ExecutionPlan>| {
        // Smaller batches than the limit asks for may be what lets it run.
        PlanMemory::of(plan.as_ref(), limit, max_rows).min_bytes() <= limit
            || PlanMemory::min_of(plan.as_ref(), max_rows).min_bytes() <= limit
    };
    if fits(&plan) {
        return fewer_builders(plan, MIN_BUILDERS.max(limit / BUILDER_BYTES));
    }
    let plan = one_window_at_a_time(plan)?;
    if fits(&plan) {
        return Ok(plan);
    }
    let mut plan = unions_in_turn(plan)?;
    let mut streams = max_streams(&plan);
    while streams > 1 && !fits(&plan) {
        streams /= 2;
        plan = reads_by(plan, streams)?;
    }
    Ok(plan)
}

/// The plan as it is, unless more than `max` of its stages build blocks at once, and fewer where inputs of unions come
/// one after the other.
fn fewer_builders(plan: Arc<dyn ExecutionPlan>, max: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let builders = builders_at_once(plan.as_ref());
    if builders <= max {
        return Ok(plan);
    }
    let turned = unions_in_turn(Arc::clone(&plan))?;
    Ok(if builders_at_once(turned.as_ref()) < builders { turned } else { plan })
}

/// The plan as it works on the least at once.
pub(crate) fn in_least_memory(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    fitted(plan, 0, 1)
}

/// Pipelines that make no window while another one is taken.
fn one_window_at_a_time(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let alone = |node: Arc<dyn ExecutionPlan>| {
        Ok(match node.operator::<PipelineExec>().filter(|pipeline| pipeline.in_flight() > 1) {
            Some(pipeline) => Transformed::yes(pipeline.with_in_flight(1).into_plan()),
            None => Transformed::no(node),
        })
    };
    plan.transform_up(alone).data()
}

/// The inputs of unions one after the other, unless somebody counts on the order that each of them has.
fn unions_in_turn(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let in_turn = |node: Arc<dyn ExecutionPlan>| {
        if !node.is::<UnionExec>() {
            return Ok(Transformed::no(node));
        }
        let inputs = node.children().into_iter().map(|input| one_task_at_once(Arc::clone(input)));
        let union = UnionExec::try_new(inputs.collect::<Result<_>>()?)?;
        Ok(Transformed::yes(TurnsExec::new(union).into_plan()))
    };
    let turned = Arc::clone(&plan).transform_up(in_turn).data()?;
    Ok(if orders_hold(&turned)? { turned } else { plan })
}

/// An input of which one task is asked for after the other: a read has no more of them open.
fn one_task_at_once(input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(read) = input.operator::<ReadExec>() {
        return Ok(read.with_streams(1).into_plan());
    }
    match input.children().as_slice() {
        [below] if input.is_operator::<MapExec>() => {
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
fn max_streams(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.operator::<ReadExec>().map_or(1, ReadExec::streams);
    plan.children().into_iter().map(max_streams).fold(own, usize::max)
}

/// All reads with at most so many streams.
fn reads_by(plan: Arc<dyn ExecutionPlan>, streams: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let fewer = |node: Arc<dyn ExecutionPlan>| {
        Ok(match node.operator::<ReadExec>().filter(|read| read.streams() > streams) {
            Some(read) => Transformed::yes(read.with_streams(streams).into_plan()),
            None => Transformed::no(node),
        })
    };
    plan.transform_up(fewer).data()
}
