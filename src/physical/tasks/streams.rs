//! The tasks of any plan, and the blocks of tasks.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, resources_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::stream;
use futures::{StreamExt, TryStreamExt};

use super::conservation::check_rows;
use super::read_block::block_batches;
use super::task::{BlockStream, Task, TaskStream, stream_of};
use crate::block::{OutputBuffer, TaskId};
use crate::config::ByteSize;
use crate::physical::operator::{Operator, PlanExt, TaskPlan};
use crate::runtime::{OpId, in_background};
use crate::store::{BlockHandle, BlockStore, Owner, QueryPool, WorkingSet};
/// On whose behalf a stage keeps blocks and memory.
pub(crate) fn owner_of(plan: &dyn TaskPlan, context: &TaskContext) -> Arc<Owner> {
    let owner = plan.stage().owner();
    owner.describe(QueryPool::query_of(context), || plan.stage_name());
    Arc::clone(owner)
}

/// The plan as one that yields tasks, if it is one of ours.
pub(crate) fn as_task_plan(plan: &dyn ExecutionPlan) -> Option<&dyn TaskPlan> {
    plan.as_operator().and_then(Operator::as_task_plan)
}

/// The plan whose blocks are those of `plan`: blocks have ids, so there is no need to bring partitions together first.
pub(crate) fn ungathered(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    as_task_plan(plan.as_ref()).and_then(TaskPlan::gathers).unwrap_or(plan)
}

/// Whether an operator keeps or writes the rows of its input.
pub(crate) fn stores_rows(plan: &dyn ExecutionPlan) -> bool {
    plan.as_operator().is_some_and(Operator::stores_rows)
}

/// Whether a plan is one of our operators, or has one below.
pub(crate) fn uses_ours(plan: &Arc<dyn ExecutionPlan>) -> bool {
    as_task_plan(plan.as_ref()).is_some() || plan.children().into_iter().any(uses_ours)
}

/// Whether the rows of a plan have an order that [`TaskId`]s tell, or that a single partition gives.
pub(crate) fn is_ordered(plan: &dyn ExecutionPlan) -> bool {
    match (as_task_plan(plan), plan.is::<UnionExec>()) {
        (Some(plan), _) => plan.is_ordered(),
        (None, true) => plan.children().into_iter().all(|child| is_ordered(child.as_ref())),
        (None, false) => plan.output_partitioning().partition_count() == 1,
    }
}

/// The tasks of any plan: those of our operators, those of the inputs of a union, or one task for a partition of
/// DataFusion's. Their time is not measured.
pub(crate) fn task_stream(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<TaskStream> {
    tasks_of(plan, partition, context, |plan, partition, context| plan.tasks(partition, context))
}

/// The same, with their time and output recorded in their stages.
pub(crate) fn measured_task_stream(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<TaskStream> {
    if let Some(plan) = as_task_plan(plan.as_ref()) {
        owner_of(plan, &context);
    }
    tasks_of(plan, partition, context, measured_tasks)
}

fn tasks_of(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    tasks: fn(&dyn TaskPlan, usize, Arc<TaskContext>) -> Result<TaskStream>,
) -> Result<TaskStream> {
    if let Some(plan) = as_task_plan(plan.as_ref()) {
        return tasks(plan, partition, context);
    }
    if plan.is::<UnionExec>() && is_ordered(plan.as_ref()) {
        let mut left = partition;
        for (index, input) in plan.children().into_iter().enumerate() {
            let partitions = input.output_partitioning().partition_count();
            if left < partitions {
                let tasks = tasks_of(input, left, context, tasks)?;
                return Ok(tasks.map_ok(move |task| Task { id: task.id.within(index), ..task }).boxed());
            }
            left -= partitions;
        }
    }
    let batches = plan.execute(partition, context)?;
    Ok(stream::iter([Ok(Task::of_plan(TaskId::root(partition), batches))]).boxed())
}

/// All tasks of a plan, in order, for one that starts them: the operator `consumer`. Their time is measured.
pub(crate) fn all_tasks(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    consumer: Option<OpId>,
) -> Result<TaskStream> {
    if let Some(plan) = as_task_plan(plan.as_ref()) {
        let stage = plan.stage().clone();
        return Ok(plan.all_tasks(context, consumer)?.map_ok(move |task| stage.measure(task)).boxed());
    }
    unmeasured_tasks(plan, context, consumer)
}

/// As [`all_tasks`], for a step of a stage that is measured as a whole.
pub(crate) fn unmeasured_tasks(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    consumer: Option<OpId>,
) -> Result<TaskStream> {
    if let Some(plan) = as_task_plan(plan.as_ref()) {
        return plan.all_tasks(context, consumer);
    }
    if plan.is::<UnionExec>() && is_ordered(plan.as_ref()) {
        let mut inputs = Vec::new();
        for (index, input) in plan.children().into_iter().enumerate() {
            let tasks = unmeasured_tasks(input, Arc::clone(&context), consumer)?;
            inputs.push(tasks.map_ok(move |task| Task { id: task.id.within(index), ..task }));
        }
        return Ok(stream::iter(inputs).flatten().boxed());
    }
    // Partitions of DataFusion's may wait for each other, so none is left without being polled.
    let partitions = (0..plan.output_partitioning().partition_count()).map(|partition| {
        let batches = in_background(plan.execute(partition, Arc::clone(&context))?);
        Ok(Task::of_plan(TaskId::root(partition), batches))
    });
    Ok(stream::iter(partitions.collect::<Result<Vec<_>>>()?.into_iter().map(Ok)).boxed())
}

/// The tasks of one of our plans, with their time and output recorded in its stage.
pub(crate) fn measured_tasks(plan: &dyn TaskPlan, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
    let stage = plan.stage().clone();
    Ok(plan.tasks(partition, context)?.map_ok(move |task| stage.measure(task)).boxed())
}

/// What a plan of ours gives to DataFusion: the batches of its tasks, one task after the other.
pub(crate) fn execute_tasks(
    plan: &dyn TaskPlan,
    partition: usize,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let schema = plan.schema();
    let batches = measured_tasks(plan, partition, context)?.map_ok(|task| task.batches).try_flatten();
    Ok(stream_of(schema, batches.boxed()))
}

/// The blocks of any plan, in the order of the partition. Tasks of our operators are measured.
pub(crate) fn block_stream(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    target_bytes: usize,
) -> Result<BlockStream> {
    block_stream_while(plan, partition, context, target_bytes, || true)
}

/// The same, as long as more tasks are `wanted`: that is asked before each of them begins.
pub(crate) fn block_stream_while(
    plan: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: Arc<TaskContext>,
    target_bytes: usize,
    wanted: impl Fn() -> bool + Send + 'static,
) -> Result<BlockStream> {
    let schema = plan.schema();
    let store = BlockStore::of_task(&context)?;
    let owner = as_task_plan(plan.as_ref()).map_or_else(Arc::default, |plan| owner_of(plan, &context));
    let tasks = measured_task_stream(plan, partition, context)?;
    let tasks = stream::try_unfold((tasks, wanted), |(mut tasks, wanted)| async move {
        let task = if wanted() { tasks.try_next().await? } else { None };
        Ok::<_, DataFusionError>(task.map(|task| (task, (tasks, wanted))))
    });
    let blocks = tasks.map_ok(move |task| {
        let buffered =
            store.working_set(&owner, 0).map(|set| blocks_of_task(task, Arc::clone(&schema), target_bytes, set));
        stream::iter([buffered]).try_flatten()
    });
    Ok(blocks.try_flatten().boxed())
}

/// In so many steps the memory of a block is reserved while it grows.
const RESERVED_STEPS: usize = 256;

pub(crate) fn blocks_of_task(
    task: Task,
    schema: SchemaRef,
    target_bytes: usize,
    working_set: WorkingSet,
) -> BlockStream {
    struct BlockBuilder {
        task: Task,
        buffer: OutputBuffer,
        working_set: WorkingSet,
        ended: bool,
        emitted: usize,
        /// Rows of the task so far, and of its blocks.
        taken: usize,
        given: usize,
    }
    let step = (target_bytes / RESERVED_STEPS).max(1);
    let buffer = OutputBuffer::new(schema, target_bytes);
    let state = BlockBuilder { task, buffer, working_set, ended: false, emitted: 0, taken: 0, given: 0 };
    stream::try_unfold(state, move |mut state| async move {
        loop {
            let block = match state.ended {
                true => state.buffer.next_final(),
                false => state.buffer.next_full(),
            };
            if let Some(block) = block {
                state.working_set.resize(state.buffer.bytes())?;
                let id = state.task.id.child(state.emitted);
                state.emitted += 1;
                state.given += block.metadata().num_rows;
                return Ok(Some(((id, block), state)));
            }
            if state.ended {
                check_rows(|| format!("forming the blocks of task {}", state.task.id), state.taken, state.given)?;
                return Ok(None);
            }
            match state.task.batches.try_next().await? {
                Some(batch) => {
                    state.taken += batch.num_rows();
                    state.buffer.push(batch);
                    let bytes = state.buffer.bytes();
                    // Without a target the whole task is one block, and nothing says that it fits.
                    if target_bytes == usize::MAX {
                        reserve_whole(&mut state.working_set, bytes, &state.task.id)?;
                    } else {
                        // What is reserved changes in steps: each costs a look at the memory of everybody.
                        state.working_set.resize(bytes.next_multiple_of(step))?;
                    }
                }
                None => state.ended = true,
            }
        }
    })
    .boxed()
}

/// Room for a block that is all of a task.
fn reserve_whole(working_set: &mut WorkingSet, bytes: usize, task: &TaskId) -> Result<()> {
    if working_set.try_resize(bytes)? {
        return Ok(());
    }
    resources_err!(
        "the block of task {task} has {} so far and does not fit in memory; set a blockyard.target_max_block_size",
        ByteSize(bytes)
    )
}

/// Properties of an operator of ours: `partitions` streams, of whose rows something is `known` (see
/// `operator/claims.rs`).
pub(crate) fn properties(
    known: EquivalenceProperties,
    partitions: usize,
    emission: EmissionType,
) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(known, Partitioning::UnknownPartitioning(partitions), emission, Boundedness::Bounded))
}

/// A task over a stored block. The block is freed when the task has taken all of it.
pub(crate) fn task_of_block(id: TaskId, schema: SchemaRef, handle: BlockHandle) -> Task {
    Task::new(id, stream_of(schema, block_batches(handle)))
}

/// Number of blocks that a plan will give, if every task gives one and their number is known before running.
pub(crate) fn planned_blocks(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    as_task_plan(plan.as_ref()).and_then(TaskPlan::planned_blocks)
}
