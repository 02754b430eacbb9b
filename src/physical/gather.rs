//! Brings the partitions of a plan together in the order of the dataset.
//!
//! ```text
//! partition 0:  task 0 ─── task 2 ──┐
//!                                   ├── 0 1 2 3 ...   the smallest id first
//! partition 1:  task 1 ─── task 3 ──┘
//! ```
//!
//! Each partition has a driver which runs ahead into the store, up to a bounded number of bytes. The partition with the
//! smallest id is always drained, so a driver that waits for room never holds up the one that everybody waits for.
//! Plans without an order (a join or aggregate of DataFusion) are gathered as rows come.
//!
//! Where only the first rows are wanted, each partition begins one task, and others only as long as rows lack.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::StageMetrics;
use super::map::limited;
use super::operator::{Operator, PlanExt, Starts};
use super::rows_of_input;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::memory::block_bytes;
use crate::physical::operator::claims;
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::block_batches;
use crate::physical::tasks::{
    Task, TaskStream, as_task_plan, block_stream_while, execute_tasks, is_ordered, owner_of, planned_blocks,
    properties, stream_of,
};
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// Bytes of the pieces in which a partition runs ahead: small, so that first rows come soon.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// A partition goes on with the task that it has begun, but begins none while more of its bytes wait: they would come
/// from fresh memory instead of what was used just before.
const BEGIN_BYTES: usize = 32 << 20;

/// One partition out of many, in order, with at most `fetch` rows.
#[derive(Debug)]
pub(crate) struct GatherExec {
    input: Arc<dyn ExecutionPlan>,
    fetch: Option<usize>,
    /// What is known of all rows together, if they were sorted.
    sorted: Option<EquivalenceProperties>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl GatherExec {
    /// Gathers `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Self {
        let properties = properties(claims::of_gathered(&input), 1, EmissionType::Incremental);
        Self { input, fetch, sorted: None, properties, stage: StageMetrics::default() }
    }

    /// Gathers `input`, whose tasks one after the other have the order and whatever else is `known`.
    pub(crate) fn sorted(input: Arc<dyn ExecutionPlan>, known: EquivalenceProperties) -> Self {
        let gather = Self::new(input, None);
        let properties = gather.properties.as_ref().clone().with_eq_properties(known.clone());
        Self { sorted: Some(known), properties: Arc::new(properties), ..gather }
    }
}

impl GatherExec {
    fn over(&self, input: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Self {
        match &self.sorted {
            Some(known) => Self { fetch, ..Self::sorted(input, known.clone()) },
            None => Self::new(input, fetch),
        }
    }
}

impl Operator for GatherExec {
    fn name(&self) -> &'static str {
        "GatherExec"
    }

    fn describe(&self) -> String {
        let order = self.properties.output_ordering().map(|order| format!("order=[{order}]"));
        let parts: Vec<_> = order.into_iter().chain(self.fetch.map(|n| format!("fetch={n}"))).collect();
        parts.join(", ")
    }

    fn describe_in_tree(&self) -> String {
        self.fetch.map_or_else(String::new, |n| format!("limit={n}"))
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.over(inputs.swap_remove(0), self.fetch).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        // Fewer rows come out than go in when it ends early.
        let rows = rows_of_input(inputs, args, &self.schema());
        Ok(if self.fetch.is_some() { Arc::new(Statistics::new_unknown(&self.schema())) } else { rows })
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(self.over(Arc::clone(&self.input), fetch).into_plan())
    }

    fn starts(&self) -> Starts {
        Starts::WhenExecuted
    }
}

impl TaskPlan for GatherExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let owner = owner_of(self, &context);
        let mut batches = match self.sorted {
            // Whether or not anybody asked for the order of the dataset.
            Some(_) => gather_in_order(&self.input, context, &owner, self.fetch)?,
            None => gather_first(&self.input, context, &owner, self.fetch)?,
        };
        if let Some(fetch) = self.fetch {
            batches = limited(batches, fetch);
        }
        Ok(stream::iter([Ok(Task::of_plan(TaskId::root(0), batches))]).boxed())
    }

    fn stage_name(&self) -> String {
        "Gather".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OneTask
    }

    fn planned_blocks(&self) -> Option<usize> {
        planned_blocks(&self.input)
    }
}

/// The plan whose blocks are those of `plan`: blocks have ids, so there is no need to bring partitions together first.
pub(crate) fn ungathered(plan: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    match plan.operator::<GatherExec>() {
        Some(gather) if gather.fetch.is_none() && is_ordered(gather.input.as_ref()) => &gather.input,
        _ => plan,
    }
}

/// All rows of a plan: in the order of the dataset, or as they come where there is no order or nobody asked for it.
pub(crate) fn gather(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    owner: &Arc<Owner>,
) -> Result<SendableRecordBatchStream> {
    gather_first(plan, context, owner, None)
}

/// The same where nobody takes more than the first `fetch` rows.
fn gather_first(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    owner: &Arc<Owner>,
    fetch: Option<usize>,
) -> Result<SendableRecordBatchStream> {
    let partitions = plan.output_partitioning().partition_count();
    if partitions == 1 {
        return plan.execute(0, context);
    }
    if !is_ordered(plan.as_ref()) || !BlockyardOptions::from_task(&context).preserve_order {
        return CoalescePartitionsExec::new(Arc::clone(plan)).execute(0, context);
    }
    gather_in_order(plan, context, owner, fetch)
}

fn gather_in_order(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    owner: &Arc<Owner>,
    fetch: Option<usize>,
) -> Result<SendableRecordBatchStream> {
    let balance = RowBalance::new(format!("gathering the rows of {}", plan.name()), &context);
    let blocks = first_blocks_in_order(plan, &context, owner, PIECE_BYTES, fetch, &balance)?;
    let batches = blocks.map_ok(|(_, handle)| block_batches(handle)).try_flatten();
    let gathered = balance.giving(stream_of(plan.schema(), batches.boxed()));
    balance.all_begun()?;
    Ok(gathered)
}

/// Blocks of about `piece_bytes` of all partitions, the one with the smallest id first. Partitions run ahead. Rows are
/// taken by `balance`; who reads the blocks gives them.
pub(super) fn blocks_in_order(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
    piece_bytes: usize,
    balance: &Arc<RowBalance>,
) -> Result<BoxStream<'static, Result<(TaskId, BlockHandle)>>> {
    first_blocks_in_order(plan, context, owner, piece_bytes, None, balance)
}

/// The same where nobody takes more than the first `fetch` rows: there may be fewer blocks then, but not fewer rows.
fn first_blocks_in_order(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
    piece_bytes: usize,
    fetch: Option<usize>,
    balance: &Arc<RowBalance>,
) -> Result<BoxStream<'static, Result<(TaskId, BlockHandle)>>> {
    let store = BlockStore::of_task(context)?;
    let target = block_bytes(context)?;
    let ahead = (target.saturating_mul(2) / piece_bytes.max(1)).clamp(2, 1024);
    // Below a limit a task begins when those before it have been taken: it may not be needed.
    let begin = if fetch.is_some() { 1 } else { (BEGIN_BYTES / piece_bytes.max(1)).clamp(1, ahead) };
    let mut inputs = Vec::new();
    let mut drivers = Vec::new();
    let fetch = fetch.unwrap_or(usize::MAX);
    for (partition, rows) in rows_of_partitions(plan).into_iter().enumerate() {
        let counted = Arc::clone(&rows);
        let lacks = move || counted.load(Relaxed) < fetch;
        let mut pieces = block_stream_while(plan, partition, Arc::clone(context), piece_bytes, lacks)?;
        let (send, receive) = mpsc::channel(ahead);
        let (store, owner, balance) = (Arc::clone(&store), Arc::clone(owner), Arc::clone(balance));
        inputs.push(Input { head: None, pieces: Some(receive) });
        drivers.push(async move {
            loop {
                let piece = match pieces.try_next().await {
                    Ok(Some((id, block))) => {
                        balance.take(block.num_rows());
                        rows.fetch_add(block.num_rows(), Relaxed);
                        store.put(block, NextUse::Soon, &owner).map(|handle| Some((id, handle)))
                    }
                    Ok(None) => Ok(None),
                    Err(e) => Err(e),
                };
                let room = match &piece {
                    Ok(Some((id, _))) if id.is_first() => ahead - begin + 1,
                    _ => 1,
                };
                let ended = !matches!(piece, Ok(Some(_)));
                match send.reserve_many(room).await.map(|mut permits| permits.next()) {
                    Ok(Some(permit)) => permit.send(piece),
                    _ => return Ok(()),
                }
                if ended {
                    return Ok(());
                }
            }
        });
    }
    Ok(in_order(inputs, Drivers::start(drivers)))
}

/// What the partitions hand over, in the order of its ids.
fn in_order(inputs: Vec<Input>, drivers: Drivers<()>) -> BoxStream<'static, Result<(TaskId, BlockHandle)>> {
    let merged = stream::try_unfold((inputs, drivers), |(mut inputs, mut drivers)| async move {
        for input in &mut inputs {
            input.fill(&mut drivers).await?;
        }
        let heads = inputs.iter_mut().filter(|i| i.head.is_some());
        let smallest = heads.min_by(|a, b| a.head.as_ref().map(|h| &h.0).cmp(&b.head.as_ref().map(|h| &h.0)));
        let taken = smallest.and_then(|input| input.head.take());
        Ok(taken.map(|taken| (taken, (inputs, drivers))))
    });
    merged.boxed()
}

/// What counts the rows of each partition. Partitions that pull tasks from one place count together: the tasks that
/// have begun are the first ones, so their rows are the first rows.
fn rows_of_partitions(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<AtomicUsize>> {
    let children = plan.children();
    if plan.is::<UnionExec>() {
        return children.into_iter().flat_map(rows_of_partitions).collect();
    }
    let partitions = plan.output_partitioning().partition_count();
    match as_task_plan(plan.as_ref()).map(TaskPlan::identity) {
        Some(TaskIdentity::OfInput { input, is_whole: true }) => rows_of_partitions(input),
        Some(_) => {
            let together = Arc::default();
            (0..partitions).map(|_| Arc::clone(&together)).collect()
        }
        _ => std::iter::repeat_with(Arc::default).take(partitions).collect(),
    }
}

/// A piece, the end (`None`), or what went wrong.
type Piece = Result<Option<(TaskId, BlockHandle)>>;

/// One partition, and the piece of it that is next.
struct Input {
    head: Option<(TaskId, BlockHandle)>,
    pieces: Option<mpsc::Receiver<Piece>>,
}

impl Input {
    async fn fill(&mut self, drivers: &mut Drivers<()>) -> Result<()> {
        let (None, Some(pieces)) = (&self.head, &mut self.pieces) else {
            return Ok(());
        };
        match pieces.recv().await {
            Some(piece) => self.head = piece?,
            // It hung up without a word: it panicked.
            None => {
                while let Some(result) = drivers.next().await {
                    result?;
                }
                return internal_err!("a partition ended without saying so");
            }
        }
        if self.head.is_none() {
            self.pieces = None;
        }
        Ok(())
    }
}
