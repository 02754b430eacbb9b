//! The same read in other tasks: in another order, some of them, smaller or larger ones.

use std::ops::Range;
use std::sync::Arc;

use super::ReadExec;
use crate::block::TaskId;
use crate::physical::exchange::random_place;
use crate::physical::read::files::{Division, divided, joined, neighbours};
use crate::physical::read::memory::ReadMemory;

impl ReadExec {
    /// The same read with its tasks in an order that `seed` gives.
    pub(crate) fn in_random_order(&self, seed: u64) -> Self {
        let window = self.window();
        let mut order: Vec<usize> = (0..window.end).map(|task| self.partition_of(task)).collect();
        order[window.start..].sort_by_cached_key(|partition| random_place(seed, &TaskId::root(*partition)));
        Self { order: Some((seed, order.into())), ..self.anew(Arc::clone(&self.input)) }
    }

    /// The same read of some of its tasks.
    pub(crate) fn of_tasks(&self, tasks: Range<usize>) -> Self {
        Self { window: Some(tasks), ..self.anew(Arc::clone(&self.input)) }
    }

    /// The same read in tasks that read one file each, if it is of files and has others.
    pub(crate) fn by_file(&self) -> Option<Self> {
        self.divided(Division::Files)
    }

    /// Whether each task may be put to the one before: where it has what follows in the same file. `None` where tasks
    /// are known by their number, or what it reads is not Parquet files of this machine.
    pub(crate) fn neighbours(&self) -> Option<Vec<bool>> {
        let is_known_by_number = self.order.is_some() || self.window.is_some() || self.first_task > 0;
        if is_known_by_number || self.is_number_chosen || self.row_columns.is_some() {
            return None;
        }
        neighbours(&self.input).filter(|tasks| tasks.len() == self.memory.rows_bytes.len())
    }

    /// The same read in fewer tasks, of which so many neighbours become one each; `None` where they are none.
    pub(crate) fn in_fewer_tasks(&self, numbers: &[usize]) -> Option<Self> {
        let scan = joined(&self.input, numbers)?;
        let mut memory = ReadMemory { row_bytes: self.memory.row_bytes, ..ReadMemory::default() };
        let mut first = 0;
        for number in numbers {
            let tasks = first..first + number;
            memory.task_bytes.extend(self.memory.task_bytes.get(tasks.clone()).and_then(|of| of.iter().max()));
            memory.rows_bytes.extend(self.memory.rows_bytes.get(tasks).map(|of| of.iter().sum::<usize>()));
            first += number;
        }
        Some(self.anew(scan).with_memory(memory))
    }

    pub(super) fn divided(&self, division: Division) -> Option<Self> {
        let (scan, task_of) = divided(&self.input, division)?;
        let bytes = |task: &usize| self.memory.task_bytes.get(*task).copied().unwrap_or(0);
        let task_bytes = task_of.iter().map(bytes).collect();
        let memory = ReadMemory { row_bytes: self.memory.row_bytes, task_bytes, rows_bytes: Vec::new() };
        let window = self.window.as_ref().map(|tasks| {
            let first_part = |task: usize| task_of.partition_point(|of| *of < task);
            first_part(tasks.start)..first_part(tasks.end)
        });
        let order = self.order.as_ref().map(|(seed, order)| {
            // The parts of a task stay together, in their order.
            let parts =
                |task: &usize| task_of.iter().enumerate().filter(|(_, of)| *of == task).map(|(part, _)| part).collect();
            let order: Vec<Vec<usize>> = order.iter().map(parts).collect();
            (*seed, order.concat().into())
        });
        Some(Self { order, window, ..self.anew(scan) }.with_memory(memory))
    }
}
