//! One execution of a stage that ends in an out queue.
//!
//! ```text
//! tasks, in order ──> dispatcher ── asks the scheduler ──> workers ── blocks ──> out queue ──> consumers
//! ```
//!
//! The dispatcher (`dispatch.rs`) takes one task after the other, and starts it when the scheduler says so. A worker puts each block into
//! the store and then into the queue; when the block is not wanted yet it gives up its resources until it is.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::TryStreamExt;
use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::conservation::RowBalance;
use super::dispatch::{Dispatcher, Hands};
use super::memory::block_bytes;
use super::tasks::{Task, all_tasks, as_task_plan, blocks_of_task, is_ordered, task_of_block};
use super::{MapExec, ReadExec, StageMetrics};
use crate::block::{BlockMetadata, TaskId};
use crate::config::BlockyardOptions;
use crate::functions::{ActorPool, Compute, Workers};
use crate::runtime::{Drivers, OpHandle, OpId, OpSpec, OutQueue, Permit, PoolSpec, Resources, Scheduler};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, QueryPool};

/// Blocks of a task that may wait in the queue.
const UNTAKEN_BLOCKS: usize = 2;

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
}

struct Out {
    queue: OutQueue<TaskId, (TaskId, BlockHandle)>,
    ended: Option<Result<(), Arc<DataFusionError>>>,
    /// Consumers that wait for a block.
    waiting: usize,
    is_cancelled: bool,
}

impl StageRun {
    /// Starts the stage `plan`, whose blocks `owner` keeps. `consumer` is the operator that takes them, if it is one that
    /// the scheduler knows.
    pub(super) fn start(
        plan: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        owner: Arc<Owner>,
        consumer: Option<OpId>,
        feeds_all_to_all: bool,
    ) -> Result<Self> {
        let scheduler = Scheduler::of_task(context)?;
        let compute = plan.downcast_ref::<MapExec>().map_or_else(Compute::default, |map| map.compute().clone());
        let pool = match compute.workers {
            Workers::Actors(ActorPool { min, max, max_tasks_in_flight }) => {
                Some(PoolSpec { min, max, max_tasks_in_flight })
            }
            Workers::Tasks(_) => None,
        };
        let options = BlockyardOptions::from_task(context);
        let (is_read, read_cpus) = (plan.is::<ReadExec>(), options.read_num_cpus.clamp(0.01, 1000.0));
        let spec = OpSpec {
            name: as_task_plan(plan.as_ref()).map_or_else(|| plan.name().to_owned(), |plan| plan.stage_name()),
            needs: match is_read {
                true => Resources { milli_cpus: (read_cpus * 1000.0) as u64, ..Resources::default() },
                false => needs(&compute, scheduler.total()),
            },
            max_tasks: match compute.workers {
                Workers::Tasks(Some(most)) => Some(most),
                Workers::Tasks(None) => {
                    let threads = plan.output_partitioning().partition_count();
                    Some(if is_read { (threads as f64 / read_cpus).ceil() as usize } else { threads })
                }
                Workers::Actors(_) => None,
            },
            consumer,
            feeds_all_to_all,
            pool,
        };
        let balance = RowBalance::new(format!("the queue behind {}", spec.name), context);
        let query = QueryPool::query_of(context);
        let op = scheduler.add(query, &scheduler.limits_of_query(&options), spec)?;
        let ordered = is_ordered(plan.as_ref()) && options.preserve_order;
        let tasks = all_tasks(plan, Arc::clone(context), Some(op.id()))?;
        let out = Out { queue: OutQueue::new(ordered), ended: None, waiting: 0, is_cancelled: false };
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
            waiting.get_or_insert_with(|| Waiting::new(stage));
            match self.no_progress {
                Some(within) => {
                    if timeout(within, changed).await.is_err() {
                        self.scheduler.check_progress(self.query, within)?;
                    }
                }
                None => changed.await,
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
struct Waiting<'a>(&'a Stage);

impl<'a> Waiting<'a> {
    fn new(stage: &'a Stage) -> Self {
        // What is said last is what is so: under the lock.
        let mut out = stage.out.lock();
        out.waiting += 1;
        stage.op.consumer_waits(true);
        drop(out);
        Self(stage)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut out = self.0.out.lock();
        out.waiting -= 1;
        self.0.op.consumer_waits(out.waiting > 0);
    }
}

/// What a task of a stage needs. Where the user says how many tasks may run but not what they need, they do not take all
/// CPUs from those that feed them.
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
        let mut blocks = blocks_of_task(task, Arc::clone(&self.schema), self.target_bytes, working_set);
        while let Some((id, block)) = blocks.try_next().await? {
            let BlockMetadata { size_bytes: bytes, num_rows, .. } = block.metadata();
            self.balance.take(num_rows);
            let handle = self.store.put(block, NextUse::Soon, &self.owner)?;
            self.wait_for_room(&key, &mut permit).await;
            // Before a consumer can say that it took the block.
            self.op.produced(bytes);
            self.out.lock().queue.push(&key, (id, handle));
            self.changed.notify_waiters();
        }
        self.out.lock().queue.end(&key);
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
