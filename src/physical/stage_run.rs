//! One execution of a stage that ends in an out queue.
//!
//! ```text
//! tasks, in order ──> dispatcher ── asks the scheduler ──> workers ── blocks ──> out queue ──> consumers
//! ```
//!
//! The dispatcher (`dispatch.rs`) takes one task after the other, and starts it when the scheduler says so. A worker
//! puts each block into the store and then into the queue; when the block is not wanted yet it gives up its resources
//! until it is.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::{Either, poll_fn, select};
use futures::{StreamExt, pending};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::timeout;

use super::StageMetrics;
use super::conservation::RowBalance;
use super::dispatch::{Dispatcher, Hands};
use super::memory::block_bytes;
use super::operator::{Operator, PlanExt};
use super::queue::QueueLimit;
use super::tasks::{
    BlockStream, Task, TaskInput, TaskPlan, all_tasks, as_task_plan, blocks_of_task, is_ordered, task_of_block,
};
use crate::block::{Block, BlockMetadata, TaskId};
use crate::config::BlockyardOptions;
use crate::functions::{ActorPool, Compute, Workers};
use crate::runtime::{
    Drivers, OpHandle, OpId, OpSpec, OutQueue, Permit, PoolSpec, Quiet, Resources, Scheduler, Stillness,
};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, QueryPool};

/// Blocks of a task that may wait in the queue.
const UNTAKEN_BLOCKS: usize = 2;

/// How often a consumer that waits looks whether anything can still happen.
const LOOK: Duration = Duration::from_secs(2);

/// A running stage. Dropping it cancels the stage.
pub(super) struct StageRun {
    stage: Arc<Stage>,
    scheduler: Arc<Scheduler>,
    query: u64,
    /// How long nothing may happen in the query.
    no_progress: Option<Duration>,
    metrics: Option<StageMetrics>,
    _drivers: Drivers<()>,
}

impl fmt::Debug for StageRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StageRun({:?})", self.stage.op.id())
    }
}

/// Who takes the blocks of a stage.
pub(super) struct Takers {
    /// The operator that does, if it is one that the scheduler knows.
    pub(super) consumer: Option<OpId>,
    /// Whether all blocks are wanted before anything is given.
    pub(super) feeds_all_to_all: bool,
    /// What is known of a limit above.
    pub(super) limit: Option<QueueLimit>,
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

impl StageRun {
    /// Starts the stage `plan`, whose blocks `owner` keeps.
    pub(super) fn start(
        plan: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        owner: Arc<Owner>,
        takers: Takers,
    ) -> Result<Self> {
        let scheduler = Scheduler::of_task(context)?;
        let stage = as_task_plan(plan.as_ref());
        let compute = stage.and_then(TaskPlan::compute).cloned().unwrap_or_default();
        let options = BlockyardOptions::from_task(context);
        let spec = spec_of(plan, &compute, &options, &takers, scheduler.total());
        let balance = RowBalance::new(format!("the queue behind {}", spec.name), context);
        let query = QueryPool::query_of(context);
        let op = scheduler.add(query, &scheduler.limits_of_query(&options), spec)?;
        let ordered = is_ordered(plan.as_ref()) && options.preserve_order;
        let tasks = all_tasks(plan, Arc::clone(context), Some(op.id()))?;
        let out = Out {
            queue: OutQueue::new(ordered),
            ended: None,
            waiting: 0,
            ended_tasks: 0,
            rows: 0,
            is_cancelled: false,
        };
        let stage = Arc::new(Stage {
            out: Mutex::new(out),
            changed: Notify::new(),
            op: Arc::new(op),
            store: BlockStore::of_task(context)?,
            owner,
            schema: plan.schema(),
            target_bytes: block_bytes(context)?,
            cancelled: Notify::new(),
            balance,
            limit: takers.limit,
            threads: context.session_config().target_partitions(),
        });
        let running = Arc::clone(&stage);
        let hands = Hands::new(plan, &compute, &options);
        let driver = async move {
            let ended = Dispatcher::new(Arc::clone(&running), tasks, hands).run().await;
            running.out.lock().ended = Some(ended.map_err(Arc::new));
            running.changed.notify_waiters();
            Ok(())
        };
        let seconds = options.execution_no_progress_timeout_s as u64;
        let no_progress = (seconds > 0).then(|| Duration::from_secs(seconds));
        let metrics = as_task_plan(plan.as_ref()).map(|plan| plan.stage().clone());
        Ok(Self { stage, scheduler, query, no_progress, metrics, _drivers: Drivers::start([driver]) })
    }

    /// Rows that came into the queue, and those that went out.
    pub(super) fn balance(&self) -> &Arc<RowBalance> {
        &self.stage.balance
    }

    /// The next block as a task; `None` when there is none any more.
    pub(super) async fn next(&self) -> Result<Option<Task>> {
        let stage = &self.stage;
        let mut waiting = None;
        loop {
            let mut changed = pin!(stage.changed.notified());
            changed.as_mut().enable();
            {
                let mut out = stage.out.lock();
                if let Some((_, (id, handle))) = out.queue.pop() {
                    drop(out);
                    stage.changed.notify_waiters();
                    let held = stage.op.taken(handle.metadata().size_bytes);
                    return Ok(Some(task_of_block(id, Arc::clone(&stage.schema), handle).holding(held)));
                }
                match &out.ended {
                    Some(Ok(())) => return Ok(None),
                    Some(Err(e)) => return Err(DataFusionError::Shared(Arc::clone(e))),
                    None => {}
                }
            }
            let waiting = waiting.get_or_insert_with(|| Waiting::new(stage));
            let look = self.no_progress.map_or(LOOK, |within| within.min(LOOK));
            if timeout(look, changed).await.is_err() {
                self.scheduler.check_progress(self.query, waiting.quiet(), self.no_progress)?;
            }
        }
    }
}

impl Drop for StageRun {
    fn drop(&mut self) {
        if let (Some(metrics), Some(status)) = (&self.metrics, self.stage.op.status()) {
            metrics.scheduled(status);
        }
        self.stage.out.lock().is_cancelled = true;
        self.stage.cancelled.notify_waiters();
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

fn is_read(plan: &dyn ExecutionPlan) -> bool {
    plan.as_operator().is_some_and(Operator::is_read)
}

/// Whether rows of a plan come from elsewhere than our reads, in which nobody sees what is under way.
fn has_other_leaves(plan: &dyn ExecutionPlan) -> bool {
    match plan.children().as_slice() {
        [] => !plan.is::<EmptyExec>() && !plan.is::<PlaceholderRowExec>(),
        _ if is_read(plan) => false,
        children => children.iter().any(|child| has_other_leaves(child.as_ref())),
    }
}

/// What the scheduler has to know of the stage `plan`.
fn spec_of(
    plan: &Arc<dyn ExecutionPlan>,
    compute: &Compute,
    options: &BlockyardOptions,
    takers: &Takers,
    total: Resources,
) -> OpSpec {
    let pool = match compute.workers {
        Workers::Actors(ActorPool { min, max, max_tasks_in_flight }) => {
            Some(PoolSpec { min, max, max_tasks_in_flight })
        }
        Workers::Tasks(_) => None,
    };
    let (is_read, read_cpus) = (is_read(plan.as_ref()), options.read_num_cpus.clamp(0.01, 1000.0));
    OpSpec {
        name: as_task_plan(plan.as_ref()).map_or_else(|| plan.name().to_owned(), |plan| plan.stage_name()),
        needs: match is_read {
            true => Resources { milli_cpus: (read_cpus * 1000.0) as u64, ..Resources::default() },
            false => needs(compute, total),
        },
        max_tasks: match compute.workers {
            Workers::Tasks(Some(most)) => Some(most),
            Workers::Tasks(None) => {
                let threads = plan.output_partitioning().partition_count();
                Some(if is_read { (threads as f64 / read_cpus).ceil() as usize } else { threads })
            }
            Workers::Actors(_) => None,
        },
        consumer: takers.consumer,
        feeds_all_to_all: takers.feeds_all_to_all,
        pool,
        waits_outside: has_other_leaves(plan.as_ref()),
    }
}

/// What a task of a stage needs. Where the user says how many tasks may run but not what they need, they do not take
/// all CPUs from those that feed them.
fn needs(compute: &Compute, total: Resources) -> Resources {
    let share = |tasks: usize| (total.milli_cpus / (2 * tasks.max(1) as u64)).clamp(1, 1000);
    let most = match compute.workers {
        Workers::Tasks(most) => most,
        Workers::Actors(pool) => pool.max,
    };
    let milli_cpus = match (compute.milli_cpus, most) {
        (Some(milli_cpus), _) => u64::from(milli_cpus),
        (None, Some(tasks)) => share(tasks),
        (None, None) => 1000,
    };
    Resources {
        milli_cpus,
        milli_gpus: compute.milli_gpus.map_or(0, u64::from),
        memory: compute.memory.map_or(0, |memory| memory.0 as u64),
        object_store_memory: 0,
        custom: compute.resources.iter().map(|(name, amount)| (name.clone(), u64::from(*amount))).collect(),
    }
}

impl Stage {
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
