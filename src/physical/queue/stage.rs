//! What the workers and consumers of a stage share: its blocks on their way from the ones to the others.
//!
//! A worker puts each block into the store and then into the out queue; when the block is not wanted yet it gives up
//! its resources until it is.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use futures::future::{Either, poll_fn, select};
use futures::{StreamExt, pending};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use crate::block::{Block, BlockMetadata, TaskId};
use crate::physical::memory::block_bytes;
use crate::physical::tasks::{BlockStream, RowBalance, Task, TaskInput, blocks_of_task, task_of_block};
use crate::runtime::{OpHandle, OutQueue, Permit, Quiet, Stillness};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// Blocks of a task that may wait in the queue.
const UNTAKEN_BLOCKS: usize = 2;

/// What is known where only the first rows of a plan are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueLimit {
    /// So many rows of the queue are enough.
    Rows(usize),
    /// What is above may leave out rows: nobody knows how many are enough.
    Unknown,
}

/// What the workers and consumers of a stage share.
pub(super) struct Stage {
    out: Mutex<Out>,
    /// Told whenever `out` changes.
    changed: Notify,
    pub(super) op: Arc<OpHandle>,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
    schema: SchemaRef,
    target_bytes: usize,
    /// Told when nobody wants the blocks any more.
    cancelled: Notify,
    /// Rows that came into the queue, and those that went out.
    balance: Arc<RowBalance>,
    limit: Option<QueueLimit>,
    /// Threads that run queries.
    threads: usize,
}

/// Whether a stage should begin more tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Appetite {
    /// As many as it can.
    Yes,
    /// None before something changes.
    NotNow,
    /// None any more: those that have begun give enough.
    NeverAgain,
}

struct Out {
    queue: OutQueue<TaskId, (TaskId, BlockHandle)>,
    ended: Option<Result<(), Arc<DataFusionError>>>,
    /// Consumers that wait for a block.
    waiting: usize,
    /// Tasks that ended, and the rows that all of them gave.
    ended_tasks: usize,
    rows: usize,
    is_cancelled: bool,
}

impl Stage {
    /// A stage that gives blocks of these columns, which `owner` keeps.
    pub(super) fn new(
        op: OpHandle,
        schema: SchemaRef,
        owner: Arc<Owner>,
        (ordered, limit): (bool, Option<QueueLimit>),
        balance: Arc<RowBalance>,
        context: &TaskContext,
    ) -> Result<Self> {
        let out = Out {
            queue: OutQueue::new(ordered),
            ended: None,
            waiting: 0,
            ended_tasks: 0,
            rows: 0,
            is_cancelled: false,
        };
        Ok(Self {
            out: Mutex::new(out),
            changed: Notify::new(),
            op: Arc::new(op),
            store: BlockStore::of_task(context)?,
            owner,
            schema,
            target_bytes: block_bytes(context)?,
            cancelled: Notify::new(),
            balance,
            limit,
            threads: context.session_config().target_partitions(),
        })
    }

    /// Rows that came into the queue, and those that went out.
    pub(super) fn balance(&self) -> &Arc<RowBalance> {
        &self.balance
    }

    /// Says that no task runs any more.
    pub(super) fn end(&self, ended: Result<()>) {
        self.out.lock().ended = Some(ended.map_err(Arc::new));
        self.changed.notify_waiters();
    }

    /// Says that nobody wants the blocks any more.
    pub(super) fn cancel(&self) {
        self.out.lock().is_cancelled = true;
        self.cancelled.notify_waiters();
    }

    /// The next block as a task; `None` when there is none any more. While it waits, `check` is told every `look` for
    /// how long nothing has moved.
    pub(super) async fn next(&self, look: Duration, check: impl Fn(Quiet) -> Result<()>) -> Result<Option<Task>> {
        let mut waiting = None;
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut out = self.out.lock();
                if let Some((_, (id, handle))) = out.queue.pop() {
                    drop(out);
                    self.changed.notify_waiters();
                    let held = self.op.taken(handle.metadata().size_bytes);
                    return Ok(Some(task_of_block(id, Arc::clone(&self.schema), handle).holding(held)));
                }
                match &out.ended {
                    Some(Ok(())) => return Ok(None),
                    Some(Err(e)) => return Err(DataFusionError::Shared(Arc::clone(e))),
                    None => {}
                }
            }
            let waiting = waiting.get_or_insert_with(|| Waiting::new(self));
            if timeout(look, changed).await.is_err() {
                check(waiting.quiet())?;
            }
        }
    }

    /// Told whenever a block comes or goes.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Whether the stage should begin one task more than the `open` that have begun or are about to. Below a limit
    /// there is one for each thread at first, and then as many as the rows that lack are worth.
    pub(super) fn appetite(&self, open: usize) -> Appetite {
        let Some(limit) = self.limit else {
            return Appetite::Yes;
        };
        let out = self.out.lock();
        let wanted = match limit {
            // Tasks begin in order, so the rows of those that have begun are the first.
            QueueLimit::Rows(rows) if out.rows >= rows => return Appetite::NeverAgain,
            QueueLimit::Rows(_) if out.ended_tasks == 0 => self.threads,
            QueueLimit::Rows(rows) => {
                let of_task = out.rows as f64 / out.ended_tasks as f64;
                // Where tasks give nothing there is nothing to go by.
                (((rows - out.rows) as f64 / of_task).ceil() as usize).max(1)
            }
            QueueLimit::Unknown => self.threads.saturating_sub(out.queue.items()),
        };
        if open < wanted { Appetite::Yes } else { Appetite::NotNow }
    }

    /// Says that a task begins. Tasks begin in order.
    pub(super) fn begin(&self, task: &Task) {
        self.out.lock().queue.begin(task.id.clone());
    }

    /// Runs a task, unless nobody wants its blocks any more. For threads that may be held up.
    pub(super) async fn run_unless_cancelled(self: Arc<Self>, task: Task, permit: Permit) -> Result<()> {
        let mut cancelled = pin!(self.cancelled.notified());
        cancelled.as_mut().enable();
        if self.out.lock().is_cancelled {
            return Ok(());
        }
        match select(cancelled, pin!(self.run(task, permit))).await {
            Either::Left(_) => Ok(()),
            Either::Right((result, _)) => result,
        }
    }

    /// Runs a task that has begun: its blocks go into the queue.
    pub(super) async fn run(&self, task: Task, mut permit: Permit) -> Result<()> {
        let key = task.id.clone();
        let working_set = self.store.working_set(&self.owner, 0)?;
        let input = task.input.clone();
        let mut blocks = blocks_of_task(task, Arc::clone(&self.schema), self.target_bytes, working_set);
        while let Some((id, block)) = next_block(&mut blocks, &input, &mut permit).await? {
            let BlockMetadata { size_bytes: bytes, num_rows, .. } = block.metadata();
            self.balance.take(num_rows);
            let handle = self.store.put(block, NextUse::Soon, &self.owner)?;
            self.wait_for_room(&key, &mut permit).await;
            // Before a consumer can say that it took the block.
            self.op.produced(bytes);
            {
                let mut out = self.out.lock();
                out.rows += handle.metadata().num_rows;
                out.queue.push(&key, (id, handle));
            }
            self.changed.notify_waiters();
        }
        {
            let mut out = self.out.lock();
            out.ended_tasks += 1;
            out.queue.end(&key);
        }
        self.changed.notify_waiters();
        Ok(())
    }

    /// Waits until the task may give its next block.
    async fn wait_for_room(&self, task: &TaskId, permit: &mut Permit) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let (untaken, urgent) = {
                let out = self.out.lock();
                (out.queue.untaken(task), out.queue.waits_for(task))
            };
            if untaken >= UNTAKEN_BLOCKS {
                permit.pause();
                changed.await;
            } else if permit.runs() && (urgent || permit.may_give()) {
                return;
            } else {
                permit.pause();
                // Whatever changes may make it urgent.
                let resumed = pin!(permit.resume(urgent));
                if urgent {
                    return resumed.await;
                }
                if let Either::Left(_) = select(resumed, changed).await {
                    return;
                }
            }
        }
    }
}

/// A consumer that waits.
struct Waiting<'a> {
    stage: &'a Stage,
    /// The moves of memory and the time at which there were last more of them.
    moved: (usize, Instant),
    stillness: Option<Stillness>,
}

impl<'a> Waiting<'a> {
    fn new(stage: &'a Stage) -> Self {
        // What is said last is what is so: under the lock.
        let mut out = stage.out.lock();
        out.waiting += 1;
        stage.op.consumer_waits(true);
        drop(out);
        Self { stage, moved: (stage.store.budget().moves(), Instant::now()), stillness: None }
    }

    /// For how long nothing has moved in the session, as of the looks up to now. What is below a stage, like a sort of
    /// hours, is no stage itself, but takes memory and gives it back.
    fn quiet(&mut self) -> Quiet {
        let moves = self.stage.store.budget().moves();
        if moves != self.moved.0 {
            self.moved = (moves, Instant::now());
        }
        Quiet { memory: self.moved.1.elapsed(), process: self.stillness.get_or_insert_with(Stillness::new).look() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut out = self.stage.out.lock();
        out.waiting -= 1;
        self.stage.op.consumer_waits(out.waiting > 0);
    }
}

/// The next block of a task. While its input has to come from other stages it holds nothing, since they may need it;
/// and nobody asks the task for more before it may run again.
async fn next_block(
    blocks: &mut BlockStream,
    input: &TaskInput,
    permit: &mut Permit,
) -> Result<Option<(TaskId, Block)>> {
    loop {
        let polled = poll_fn(|context| Poll::Ready(blocks.poll_next_unpin(context))).await;
        if let Poll::Ready(next) = polled {
            return next.transpose();
        }
        if input.awaits_others() {
            permit.await_input();
        }
        // The stream has been told whom to wake.
        pending!();
        permit.input_came().await;
    }
}
