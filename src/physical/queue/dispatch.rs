//! Starts the tasks of a stage: one after the other, when the scheduler says so, on the threads that the stage wants.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use tokio::time::sleep;

use super::stage::{Appetite, Stage};
use crate::config::BlockyardOptions;
use crate::functions::{Compute, Workers, drop_states};
use crate::physical::operator::TaskPlan;
use crate::physical::tasks::{Task, TaskStream, as_task_plan};
use crate::runtime::{ActorLife, Actors, Drivers, Permit, PoolState, on_own_thread};

/// How often a pool in which nothing happens looks whether it should shrink.
const LOOK: Duration = Duration::from_secs(1);

/// What runs the tasks.
pub(super) enum TaskWorkers {
    /// The session's threads, or a thread for each task: one that blocks then holds up nobody else.
    Tasks { running: Drivers<()>, own_threads: bool },
    /// Actors, which have this many tasks at most.
    Actors { actors: Actors, max_tasks_in_flight: usize },
}

impl TaskWorkers {
    /// As the user says for the stage `plan`.
    pub(super) fn new(plan: &Arc<dyn ExecutionPlan>, compute: &Compute, options: &BlockyardOptions) -> Self {
        match compute.workers {
            Workers::Tasks(most) => {
                let running = Drivers::start(std::iter::empty::<futures::future::Ready<Result<()>>>());
                Self::Tasks { running, own_threads: most.is_some() }
            }
            Workers::Actors(pool) => {
                let build = as_task_plan(plan.as_ref()).map_or_else(|| Arc::new(|| Ok(())) as _, TaskPlan::preparation);
                let life = ActorLife { build, retries: options.actor_init_max_retries, end: drop_states };
                Self::Actors { actors: Actors::new(life), max_tasks_in_flight: pool.max_tasks_in_flight }
            }
        }
    }

    fn open(&self) -> usize {
        match self {
            Self::Tasks { running, .. } => running.len(),
            Self::Actors { actors, .. } => actors.busy(),
        }
    }

    /// Tasks that may run or be in hand.
    fn capacity(&self) -> usize {
        match self {
            // What runs is the scheduler's business; one more is ready for its answer.
            Self::Tasks { running, .. } => running.len() + 1,
            Self::Actors { actors, max_tasks_in_flight } => {
                (actors.ready() + actors.pending()).max(1).saturating_mul(*max_tasks_in_flight)
            }
        }
    }

    fn has_place(&self) -> bool {
        match self {
            Self::Tasks { .. } => true,
            Self::Actors { actors, .. } => actors.busy() < actors.ready(),
        }
    }

    fn start(&mut self, stage: Arc<Stage>, task: Task, permit: Permit) -> Result<()> {
        match self {
            Self::Tasks { running, own_threads: false } => running.spawn(async move { stage.run(task, permit).await }),
            Self::Tasks { running, .. } => running.spawn(on_own_thread(stage.run_unless_cancelled(task, permit))),
            Self::Actors { actors, .. } => actors.run(stage.run_unless_cancelled(task, permit).boxed())?,
        }
        Ok(())
    }

    /// Waits until something happens: a task ends, or an actor is ready.
    async fn next(&mut self) -> Result<()> {
        match self {
            Self::Tasks { running, .. } if running.is_empty() => futures::future::pending().await,
            Self::Tasks { running, .. } => running.next().await.unwrap_or(Ok(())),
            Self::Actors { actors, .. } => actors.next().await,
        }
    }
}

/// Starts the tasks of one execution of a stage.
pub(super) struct Dispatcher {
    stage: Arc<Stage>,
    tasks: TaskStream,
    /// Tasks that were taken from the stage before and have not begun.
    in_hand: VecDeque<Task>,
    input_ended: bool,
    /// The question whether the first task in hand may start.
    asks: Option<BoxFuture<'static, Permit>>,
    workers: TaskWorkers,
}

impl Dispatcher {
    pub(super) fn new(stage: Arc<Stage>, tasks: TaskStream, workers: TaskWorkers) -> Self {
        Self { stage, tasks, in_hand: VecDeque::new(), input_ended: false, asks: None, workers }
    }

    /// Runs all tasks to their end. The first error ends it.
    pub(super) async fn run(mut self) -> Result<()> {
        loop {
            self.scale()?;
            if self.input_ended && self.in_hand.is_empty() && self.workers.open() == 0 {
                return match self.workers {
                    TaskWorkers::Actors { actors, .. } => actors.close().await,
                    TaskWorkers::Tasks { .. } => Ok(()),
                };
            }
            if self.asks.is_none() && !self.in_hand.is_empty() {
                let op = Arc::clone(&self.stage.op);
                self.asks = Some(async move { op.start().await }.boxed());
            }
            let stage = Arc::clone(&self.stage);
            let mut changed = pin!(stage.changed());
            changed.as_mut().enable();
            let open = self.in_hand.len() + self.workers.open();
            let appetite = stage.appetite(open);
            if appetite == Appetite::NeverAgain && !self.input_ended {
                self.input_ended = true;
                self.in_hand.clear();
                self.asks = None;
                continue;
            }
            let is_full = appetite == Appetite::NotNow && !self.input_ended;
            let takes_more = !self.input_ended && !is_full && open < self.workers.capacity();
            let looks = matches!(self.workers, TaskWorkers::Actors { .. });
            tokio::select! {
                // A stage that fails ends, whatever else it could do.
                biased;
                happened = self.workers.next() => happened?,
                permit = granted(&mut self.asks) => {
                    self.asks = None;
                    // A task gives its permit back just before its actor says that it is free.
                    while !self.workers.has_place() {
                        self.workers.next().await?;
                    }
                    if let Some(task) = self.in_hand.pop_front() {
                        self.stage.begin(&task);
                        self.workers.start(Arc::clone(&self.stage), task, permit)?;
                    }
                }
                task = self.tasks.try_next(), if takes_more => match task? {
                    Some(task) => self.in_hand.push_back(task),
                    None => self.input_ended = true,
                },
                () = changed, if is_full => {}
                () = async { sleep(LOOK).await }, if looks => {}
            }
        }
    }

    /// Starts or ends actors as the scheduler says.
    fn scale(&mut self) -> Result<()> {
        let TaskWorkers::Actors { actors, .. } = &mut self.workers else {
            return Ok(());
        };
        let in_flight = actors.busy() + self.in_hand.len();
        let state =
            PoolState { ready: actors.ready(), pending: actors.pending(), in_flight, input_ended: self.input_ended };
        let change = self.stage.op.scale(state);
        (0..change).try_for_each(|_| actors.grow())?;
        actors.shrink((-change).max(0) as usize);
        if change != 0 {
            let state = PoolState { ready: actors.ready(), pending: actors.pending(), ..state };
            self.stage.op.pool_is(state);
        }
        Ok(())
    }
}

async fn granted(asks: &mut Option<BoxFuture<'static, Permit>>) -> Permit {
    match asks {
        Some(asks) => asks.await,
        None => futures::future::pending().await,
    }
}
