//! The tasks of a stage that run elsewhere, in their order and some of them ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{StageRunner, Unit};
use crate::block::TaskId;
use crate::physical::tasks::{Task, stream_of};
use crate::runtime::in_background;

/// So many units come to each slot where tasks run together.
const UNITS_PER_SLOT: usize = 8;
/// So many units come to each process where these build actors first.
const UNITS_PER_PROCESS: usize = 2;

/// How tasks become units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Each by itself.
    ByTask,
    /// As many together as give all slots enough to do.
    Together,
    /// So many that few of them build actors, one of them in each process at once.
    WithActors,
}

/// One execution of a stage. What runs ahead is cancelled when this drops.
pub(super) struct Units {
    runner: Arc<dyn StageRunner>,
    unit: Unit,
    /// How many tasks run together, and how many units at once.
    together: usize,
    slots: usize,
    context: Arc<TaskContext>,
    ahead: Mutex<Ahead>,
    /// A permit for each unit that may run at once.
    permits: Arc<Semaphore>,
}

struct Ahead {
    /// The tasks that have not begun.
    left: Range<usize>,
    begun: VecDeque<(TaskId, SendableRecordBatchStream)>,
}

impl Units {
    /// The tasks of `unit`, at most `at_once` of them at once.
    pub(super) fn new(
        runner: Arc<dyn StageRunner>,
        unit: Unit,
        grouping: Grouping,
        at_once: usize,
        context: &Arc<TaskContext>,
    ) -> Self {
        let (slots, units) = match grouping {
            Grouping::ByTask => (runner.slots(), usize::MAX),
            Grouping::Together => (runner.slots(), UNITS_PER_SLOT * runner.slots()),
            Grouping::WithActors => (runner.processes(), UNITS_PER_PROCESS * runner.processes()),
        };
        let (together, slots) = (unit.tasks.len().div_ceil(units.max(1)), slots.max(1));
        let ahead = Mutex::new(Ahead { left: unit.tasks.clone(), begun: VecDeque::new() });
        let permits = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        let together = together.max(1);
        Self { runner, unit, together, slots, context: Arc::clone(context), ahead, permits }
    }

    /// The next of them, when those that may run beside it have begun.
    pub(super) async fn next(&self) -> Result<Option<Task>> {
        loop {
            if let Some(task) = self.next_begun()? {
                return Ok(task);
            }
            // All that may run are with those who take their rows, and end without this one.
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let permit = permit.map_err(|e| internal_datafusion_err!("{e}"))?;
            self.begin(&mut self.ahead.lock(), permit)?;
        }
    }

    /// The next of them that has begun, or that there are no more; nothing where the next one may not begin yet.
    fn next_begun(&self) -> Result<Option<Option<Task>>> {
        let mut ahead = self.ahead.lock();
        while ahead.begun.len() <= self.slots && !ahead.left.is_empty() {
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { break };
            self.begin(&mut ahead, permit)?;
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
        let tasks = ahead.left.start..ahead.left.end.min(ahead.left.start + self.together);
        ahead.left.start = tasks.end;
        let (id, unit) = (TaskId::root(tasks.start), Unit { tasks, ..self.unit.clone() });
        let schema = Arc::clone(&unit.schema);
        // As long as rows are made.
        let rows = self.runner.run(unit, &self.context)?.inspect(move |_| {
            let _running = &permit;
        });
        ahead.begun.push_back((id, in_background(stream_of(schema, rows.boxed()))));
        Ok(())
    }
}
