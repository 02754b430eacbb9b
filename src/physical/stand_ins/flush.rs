//! Empties the table of a partial aggregate when it leaves the cache, where that costs nothing.
//!
//! Rows of a group often follow each other: the lines of an order, the events of a session. A table of all groups finds
//! each of them once, in memory that no cache holds, and the final aggregate, which has the groups in parts, finds them
//! once more. A table that gives what it has when it is full does the same with the groups of the last while:
//!
//! ```text
//! rows            1 1 1 1 2 2 2 3 3 3 3 4 4 4 4 ..
//! a small table   [1 2] [3 4] ..      one row of each group for the final aggregate, as if it had been large
//!
//! rows            3 1 4 1 5 9 2 6 5 3 5 8 9 7 9 ..
//! a small table   [3 1] [4 1] [5 9] ..      nearly all rows
//! ```
//!
//! Which of them the rows are like is tried: a table is emptied, and the next one when it is twice as large. Where both
//! give few groups, and the large one has as many rows for each as the small one had, groups leave and do not return.
//! Of the same groups again and again there would be no more than before, or more rows for each. Once a table gives
//! more of its rows it is emptied no more.

use std::sync::{Arc, Weak};

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricValue, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use parking_lot::Mutex;

use crate::physical::operator::{IntoPlan, Operator};
use crate::physical::rows_of_input;
use crate::store::{Governor, QueryPool};

/// What DataFusion calls the table of a partial aggregate.
const TABLE: &str = "PartialHashAggregateStream";
/// Bytes of a table that a cache of a core holds, about.
const CACHE_BYTES: usize = 1 << 20;
/// Rows of a group that a table has to find, at least.
const MIN_ROWS: f64 = 3.0;
/// As many times more may a table find that is twice as large.
const MORE_ROWS: f64 = 1.3;

/// The groups of a partial aggregate, some of them more than once.
#[derive(Debug)]
pub(crate) struct FlushExec {
    input: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl FlushExec {
    /// Of `input`, which is a partial aggregate.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl Operator for FlushExec {
    fn name(&self) -> &'static str {
        "FlushExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let flushes = MetricBuilder::new(&self.metrics).counter("flushes", partition);
        let table = Table { aggregate: Arc::downgrade(&self.input), partition, flushes, watched: Mutex::default() };
        // It executes what is below it before it registers for its table.
        QueryPool::governed(&context, TABLE, Arc::new(table), || self.input.execute(partition, Arc::clone(&context)))
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// The table of a partition.
#[derive(Debug)]
struct Table {
    /// What is run may outlive what was planned.
    aggregate: Weak<dyn ExecutionPlan>,
    partition: usize,
    flushes: Count,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Whether it was refused, and so takes what it needs without its groups next.
    is_emptied: bool,
    pace: Pace,
}

impl Table {
    /// Rows that the aggregate has seen, and groups that it has given.
    fn seen_and_given(&self) -> Option<(usize, usize)> {
        let metrics = self.aggregate.upgrade()?.metrics()?;
        let of_partition = metrics.iter().filter(|metric| metric.partition() == Some(self.partition));
        of_partition.map(|metric| metric.value()).find_map(|value| match value {
            MetricValue::Ratio { name, ratio_metrics } if name == "reduction_factor" => {
                Some((ratio_metrics.total(), ratio_metrics.part()))
            }
            _ => None,
        })
    }
}

impl Governor for Table {
    fn may_have(&self, bytes: usize) -> bool {
        let mut watched = self.watched.lock();
        if std::mem::take(&mut watched.is_emptied) || bytes < CACHE_BYTES || watched.pace == Pace::Other {
            return true;
        }
        let Some((rows, groups)) = self.seen_and_given() else { return true };
        (watched.pace, watched.is_emptied) = watched.pace.at(bytes, rows, groups);
        self.flushes.add(usize::from(watched.is_emptied));
        !watched.is_emptied
    }
}

/// How groups come.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Pace {
    /// Not known.
    #[default]
    Unknown,
    /// A table was emptied when it had so many bytes.
    Tried { bytes: usize, emptied: Emptied },
    /// They leave and do not return, as far as is known: a table is emptied when it has so many bytes. If that is not
    /// sure yet, the small table had found so many rows of each group.
    Steady { bytes: usize, emptied: Emptied, before: Option<f64> },
    /// They return, or have few rows.
    Other,
}

/// When a table was emptied the last time.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Emptied {
    /// Rows until then, and of these the ones whose groups it gave.
    rows: usize,
    its_rows: usize,
    /// Groups that were given before.
    groups: usize,
}

impl Emptied {
    /// Now, after `rows` and `groups`.
    fn next(self, rows: usize, groups: usize) -> Self {
        Self { rows, its_rows: rows - self.rows, groups }
    }

    /// Rows of a group, where so many groups have been given now.
    fn rows_of_group(self, groups: usize) -> f64 {
        self.its_rows as f64 / (groups - self.groups).max(1) as f64
    }
}

impl Pace {
    /// A table is to have so many bytes, having seen `rows` and given `groups`. Gives how they come now, and whether it
    /// is to be emptied.
    fn at(self, bytes: usize, rows: usize, groups: usize) -> (Self, bool) {
        match self {
            Self::Unknown => (Self::Tried { bytes, emptied: Emptied::default().next(rows, groups) }, true),
            Self::Tried { bytes: small, emptied } => match emptied.rows_of_group(groups) {
                few if few < MIN_ROWS => (Self::Other, false),
                _ if bytes < 2 * small => (self, false),
                found => (Self::Steady { bytes, emptied: emptied.next(rows, groups), before: Some(found) }, true),
            },
            Self::Steady { bytes: full, .. } if bytes < full => (self, false),
            Self::Steady { bytes: full, emptied, before } => {
                let found = emptied.rows_of_group(groups);
                match found < MIN_ROWS || before.is_some_and(|before| found > MORE_ROWS * before) {
                    true => (Self::Other, false),
                    false => (Self::Steady { bytes: full, emptied: emptied.next(rows, groups), before: None }, true),
                }
            }
            Self::Other => (self, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// How often a table is emptied whose groups take about 32 bytes each, and how many groups are given at the end.
    fn run(rows: usize, key_of: impl Fn(usize) -> usize) -> (usize, usize) {
        let (mut pace, mut table, mut given) = (Pace::default(), HashSet::new(), 0);
        let (mut bytes, mut emptied) = (0, 0);
        for row in 0..rows {
            table.insert(key_of(row));
            // Its parts double one after the other.
            let now = table.len().next_power_of_two() * 16 + (table.len() * 8 / 7).next_power_of_two() * 16;
            if now <= bytes || now < CACHE_BYTES {
                continue;
            }
            let (next, is_emptied) = pace.at(now, row + 1, given);
            (pace, bytes) = (next, now);
            if is_emptied {
                given += table.len();
                emptied += 1;
                (table, bytes) = (HashSet::new(), 0);
            }
        }
        (emptied, given + table.len())
    }

    fn random(row: usize) -> usize {
        ((row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize
    }

    #[test]
    fn groups_that_do_not_return_leave() {
        for shift in 0..8 {
            let (emptied, given) = run(4_000_000, |row| (row + shift * 1000) / (4 + shift));
            assert!(emptied > 2, "{shift} {emptied}");
            let groups = 4_000_000 / (4 + shift);
            assert!((groups..=groups + 2 + emptied).contains(&given), "{shift} {given}");
        }
    }

    #[test]
    fn groups_that_return_stay() {
        for groups in [20_000, 30_000, 40_000, 60_000, 70_000, 100_000, 300_000] {
            let (emptied, given) = run(4_000_000, |row| random(row) % groups);
            assert!(emptied <= 2, "{groups} {emptied}");
            assert!(given <= 3 * groups, "{groups} {given}");
        }
        // Nearly each row has its own.
        assert_eq!(run(4_000_000, |row| row / 4 * 3 + row % 4 % 3).0, 1);
        // They follow each other at first only.
        let (emptied, _) = run(4_000_000, |row| if row < 1_000_000 { row / 4 } else { random(row) });
        assert!(emptied < 12, "{emptied}");
    }
}
