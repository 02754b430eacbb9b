//! Bringing partitions together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::memory::block_bytes;
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::tasks::{RowBalance, as_task_plan, block_batches, block_stream_while, is_ordered, stream_of};
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// Bytes of the pieces in which a partition runs ahead: small, so that first rows come soon.
pub(in crate::physical) const PIECE_BYTES: usize = 4 << 20;

/// A partition goes on with the task that it has begun, but begins none while more of its bytes wait: they would come
/// from fresh memory instead of what was used just before.
const BEGIN_BYTES: usize = 32 << 20;

/// All rows of a plan: in the order of the dataset, or as they come where there is no order or nobody asked for it.
pub(crate) fn gather(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    owner: &Arc<Owner>,
) -> Result<SendableRecordBatchStream> {
    let partitions = plan.output_partitioning().partition_count();
    if partitions == 1 {
        return plan.execute(0, context);
    }
    if !is_ordered(plan.as_ref()) || !BlockyardOptions::from_task(&context).preserve_order {
        return CoalescePartitionsExec::new(Arc::clone(plan)).execute(0, context);
    }
    gather_in_order(plan, context, owner, None)
}

/// The rows in the order of the dataset, whether or not anybody asked for it.
pub(in crate::physical) fn gather_in_order(
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
pub(in crate::physical) fn blocks_in_order(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
    piece_bytes: usize,
    balance: &Arc<RowBalance>,
) -> Result<BoxStream<'static, Result<(TaskId, BlockHandle)>>> {
    first_blocks_in_order(plan, context, owner, piece_bytes, None, balance)
}

/// The same where nobody takes more than the first `fetch` rows: there may be fewer blocks then, but not fewer rows.
pub(in crate::physical) fn first_blocks_in_order(
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
