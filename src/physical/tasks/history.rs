//! The tasks of a stage that ended, in little memory however many there are: sums, bounds, and the last ones.

use std::collections::VecDeque;
use std::time::Duration;

use crate::block::BlockMetadata;

/// Tasks that are remembered one by one.
const LAST: usize = 1000;

/// One finished task.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TaskRecord {
    /// Time in the task, with its waits for input and IO but not for its consumer.
    pub(crate) wall: Duration,
    /// The part of it in which it waited: for its input, for IO, or for a function that is asynchronous.
    pub(crate) waited: Duration,
    /// Time in which nobody asked it for more.
    pub(crate) unasked: Duration,
    /// CPU time of the thread while in the task.
    pub(crate) cpu: Duration,
    /// Rows and bytes that it emitted.
    pub(crate) output: BlockMetadata,
}

impl TaskRecord {
    /// Both, joined number by number.
    fn with(self, other: Self, time: fn(Duration, Duration) -> Duration, count: fn(usize, usize) -> usize) -> Self {
        Self {
            wall: time(self.wall, other.wall),
            waited: time(self.waited, other.waited),
            unasked: time(self.unasked, other.unasked),
            cpu: time(self.cpu, other.cpu),
            output: BlockMetadata {
                num_rows: count(self.output.num_rows, other.output.num_rows),
                size_bytes: count(self.output.size_bytes, other.output.size_bytes),
            },
        }
    }
}

/// All tasks of a stage that ended, together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TaskSummary {
    count: usize,
    sum: TaskRecord,
    min: TaskRecord,
    max: TaskRecord,
    /// Squares of the seconds in each, summed.
    squares: f64,
}

/// All tasks of a stage that ended, and the last of them one by one.
#[derive(Debug, Default)]
pub(super) struct TaskHistory {
    pub(super) all: TaskSummary,
    /// In the order in which they ended.
    pub(super) last: VecDeque<TaskRecord>,
}

impl TaskHistory {
    /// A task has ended.
    pub(super) fn push(&mut self, task: TaskRecord) {
        self.all.add(task);
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(task);
    }
}

/// Some number of each task, over all tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) total: f64,
}

impl TaskSummary {
    fn add(&mut self, task: TaskRecord) {
        let first = self.count == 0;
        self.min = if first { task } else { self.min.with(task, Duration::min, usize::min) };
        self.max = self.max.with(task, Duration::max, usize::max);
        self.sum = self.sum.with(task, Duration::saturating_add, usize::saturating_add);
        self.squares += task.wall.as_secs_f64().powi(2);
        self.count += 1;
    }

    /// How many there were.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// What all of them took and gave together.
    pub(crate) fn sum(&self) -> &TaskRecord {
        &self.sum
    }

    /// What `of` is of each task, over all of them.
    pub(crate) fn spread(&self, of: impl Fn(&TaskRecord) -> f64) -> Spread {
        let total = of(&self.sum);
        Spread { min: of(&self.min), max: of(&self.max), mean: total / self.count.max(1) as f64, total }
    }

    /// The seconds that tasks took: mean and standard deviation.
    pub(crate) fn wall_seconds(&self) -> (f64, f64) {
        let count = self.count.max(1) as f64;
        let mean = self.sum.wall.as_secs_f64() / count;
        (mean, (self.squares / count - mean * mean).max(0.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tasks_leave_sums_and_the_last_ones() {
        let mut history = TaskHistory::default();
        let task = |n: u64| TaskRecord {
            wall: Duration::from_secs(n),
            output: BlockMetadata { num_rows: n as usize, size_bytes: 8 * n as usize },
            ..TaskRecord::default()
        };
        (1..=3000).for_each(|n| history.push(task(n)));
        assert_eq!((history.all.count(), history.last.len()), (3000, LAST));
        assert_eq!(history.last.front().map(|task| task.output.num_rows), Some(2001));
        let rows = history.all.spread(|task| task.output.num_rows as f64);
        assert_eq!(rows, Spread { min: 1.0, max: 3000.0, mean: 1500.5, total: 4_501_500.0 });
        let (mean, deviation) = history.all.wall_seconds();
        // Of the numbers up to n: the root of (n² - 1) / 12.
        assert!((mean - 1500.5).abs() < 1e-6 && (deviation - 866.025).abs() < 0.01, "{mean} {deviation}");
    }
}
