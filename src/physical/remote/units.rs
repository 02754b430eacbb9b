//! The tasks of a stage that run elsewhere, in their order and some of them ahead.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use parking_lot::Mutex;

use super::{StageRunner, Unit};
use crate::block::TaskId;
use crate::physical::tasks::Task;
use crate::runtime::in_background;

/// So many units come to each slot where tasks run together.
const UNITS_PER_SLOT: usize = 8;

/// One execution of a stage. What runs ahead is cancelled when this drops.
pub(super) struct Units {
    runner: Arc<dyn StageRunner>,
    unit: Unit,
    /// How many tasks run together.
    together: usize,
    context: Arc<TaskContext>,
    ahead: Mutex<Ahead>,
}

struct Ahead {
    /// The tasks that have not begun.
    left: Range<usize>,
    begun: VecDeque<(TaskId, SendableRecordBatchStream)>,
}

impl Units {
    /// The tasks of `unit`: each by itself, where its rows are those of a task, or as many together as give all slots
    /// enough to do.
    pub(super) fn new(runner: Arc<dyn StageRunner>, unit: Unit, by_task: bool, context: &Arc<TaskContext>) -> Self {
        let together = if by_task { 1 } else { unit.tasks.len().div_ceil(UNITS_PER_SLOT * runner.slots().max(1)) };
        let ahead = Mutex::new(Ahead { left: unit.tasks.clone(), begun: VecDeque::new() });
        Self { runner, unit, together: together.max(1), context: Arc::clone(context), ahead }
    }

    /// The next of them, when those that may run beside it have begun.
    pub(super) fn next(&self) -> Result<Option<Task>> {
        let mut ahead = self.ahead.lock();
        while ahead.begun.len() <= self.runner.slots() && !ahead.left.is_empty() {
            let tasks = ahead.left.start..ahead.left.end.min(ahead.left.start + self.together);
            ahead.left.start = tasks.end;
            let (id, unit) = (TaskId::root(tasks.start), Unit { tasks, ..self.unit.clone() });
            let rows = in_background(self.runner.run(unit, &self.context)?);
            ahead.begun.push_back((id, rows));
        }
        Ok(ahead.begun.pop_front().map(|(id, rows)| Task::new(id, rows)))
    }
}
