//! The tasks of a stage that run elsewhere, in their order and some of them ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Exchanged, StageRunner, StageSource, Unit};
use crate::block::TaskId;
use crate::physical::tasks::{Task, stream_of};
use crate::runtime::{Drivers, in_background};

/// So many units come to each slot where tasks run together.
const UNITS_PER_SLOT: usize = 8;
/// And so many where each task writes files.
const WRITES_PER_SLOT: usize = 64;
/// So many units come to each process where these build actors first.
const UNITS_PER_PROCESS: usize = 2;

/// How tasks become units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Each by itself.
    ByTask,
    /// As many together as give all slots enough to do.
    Together,
    /// Few together, which are done again where an executor is lost: each tells once of the files of all.
    Writing,
    /// So many that few of them build actors, one of them in each process at once.
    WithActors,
}

/// One execution of a stage. What runs ahead is cancelled when this drops.
pub(super) struct Units {
    unit: Unit,
    grouping: Grouping,
    context: Arc<TaskContext>,
    /// What runs before the first of them.
    exchanged: SharedExchange,
    ahead: Mutex<Option<Ahead>>,
    /// A permit for each unit that may run at once.
    permits: Arc<Semaphore>,
}

/// What executors have exchanged, for all streams.
type SharedExchange = Shared<BoxFuture<'static, Result<Exchanged, Arc<DataFusionError>>>>;

struct Ahead {
    runner: Arc<dyn StageRunner>,
    /// How many tasks run together, and how many units at once.
    together: usize,
    slots: usize,
    /// The tasks that have not begun.
    left: Range<usize>,
    begun: VecDeque<(TaskId, SendableRecordBatchStream)>,
}

impl Units {
    /// The tasks of `unit`, or those that are left when the executors have exchanged rows; at most `at_once` of them at
    /// once.
    pub(super) fn new(
        runner: Arc<dyn StageRunner>,
        unit: Unit,
        source: StageSource,
        grouping: Grouping,
        at_once: usize,
        context: &Arc<TaskContext>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        let tasks = unit.tasks.len();
        let own = Arc::clone(context);
        let exchanged = async move {
            if source.exchanges.is_empty() {
                return Ok(Exchanged { runner, tasks });
            }
            // Started by the first poll, on the threads of whoever polls.
            match Drivers::start([runner.exchange(source, &own)]).next().await {
                Some(exchanged) => exchanged.map_err(Arc::new),
                None => internal_err!("an exchange vanished").map_err(Arc::new),
            }
        };
        let exchanged = exchanged.boxed().shared();
        Self { unit, grouping, context: Arc::clone(context), exchanged, ahead: Mutex::default(), permits }
    }

    /// The next of them, when those that may run beside it have begun.
    pub(super) async fn next(&self) -> Result<Option<Task>> {
        let exchanged = self.exchanged.clone().await.map_err(DataFusionError::Shared)?;
        loop {
            if let Some(task) = self.next_begun(&exchanged)? {
                return Ok(task);
            }
            // All that may run are with those who take their rows, and end without this one.
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let permit = permit.map_err(|e| internal_datafusion_err!("{e}"))?;
            self.begin(self.ahead.lock().get_or_insert_with(|| self.all(&exchanged)), permit)?;
        }
    }

    /// All of them.
    fn all(&self, exchanged: &Exchanged) -> Ahead {
        let Exchanged { runner, tasks } = exchanged;
        let (slots, units) = match self.grouping {
            Grouping::ByTask => (runner.slots(), usize::MAX),
            Grouping::Together => (runner.slots(), UNITS_PER_SLOT * runner.slots()),
            Grouping::Writing => (runner.slots(), WRITES_PER_SLOT * runner.slots()),
            Grouping::WithActors => (runner.processes(), UNITS_PER_PROCESS * runner.processes()),
        };
        let together = tasks.div_ceil(units.max(1)).max(1);
        let first = self.unit.tasks.start;
        let left = first..first + tasks;
        Ahead { runner: Arc::clone(runner), together, slots: slots.max(1), left, begun: VecDeque::new() }
    }

    /// The next of them that has begun, or that there are no more; nothing where the next one may not begin yet.
    fn next_begun(&self, exchanged: &Exchanged) -> Result<Option<Option<Task>>> {
        let mut ahead = self.ahead.lock();
        let ahead = ahead.get_or_insert_with(|| self.all(exchanged));
        while ahead.begun.len() <= ahead.slots && !ahead.left.is_empty() {
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { break };
            self.begin(ahead, permit)?;
        }
        Ok(match ahead.begun.pop_front() {
            Some((id, rows)) => Some(Some(Task::new(id, rows))),
            None if ahead.left.is_empty() => Some(None),
            None => None,
        })
    }

    /// Begins the next unit, in their order: whoever waits for the first must not wait for what others hold.
    fn begin(&self, ahead: &mut Ahead, permit: OwnedSemaphorePermit) -> Result<()> {
        if ahead.left.is_empty() {
            return Ok(());
        }
        let tasks = ahead.left.start..ahead.left.end.min(ahead.left.start + ahead.together);
        ahead.left.start = tasks.end;
        let (id, unit) = (TaskId::root(tasks.start), Unit { tasks, ..self.unit.clone() });
        let schema = Arc::clone(&unit.schema);
        // As long as rows are made.
        let rows = ahead.runner.run(unit, &self.context)?.inspect(move |_| {
            let _running = &permit;
        });
        ahead.begun.push_back((id, in_background(stream_of(schema, rows.boxed()))));
        Ok(())
    }
}
