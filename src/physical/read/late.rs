//! Late materialization: whether the decoder of a scan evaluates its filters, and decodes the other columns only of the
//! rows that pass. What dictionaries can be asked, they are asked before.
//!
//! That pays where few rows pass and what they have beside the filtered columns is dear to decode; elsewhere it costs.
//! Nobody knows which before, so the first tasks are read in both ways, and the others in the one that took less time
//! per row. From time to time the other one is tried again, since files differ.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, ParquetSource};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use parking_lot::Mutex;

use super::clock::ReadClock;
use super::dictionary::{LateTask, Narrowed, Refusals};
use super::files::{file_scan, is_far, rows_of_files, without_files};
use super::pruning::Left;

/// Tasks that are read in each way before one of them is chosen.
const TRIED: usize = 3;

/// Of so many tasks one is read in the way that was not chosen.
const AGAIN: usize = 32;

/// Tasks that may say nothing, since statistics left out all of their rows or none could be evaluated, before most of
/// the others are not asked.
const FRUITLESS: usize = 4 * TRIED;

/// How a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// All columns, and what is above filters.
    Whole,
    /// The filtered columns first.
    Late,
}

/// How a task reads, and whether it is measured.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    way: Way,
    is_measured: bool,
    /// The rows of the row groups that it has read, where their dictionaries were asked before.
    looked_at: Arc<OnceLock<usize>>,
}

/// How the tasks of a scan are read late.
#[derive(Debug)]
pub(super) struct LateMaterialization {
    schema: SchemaRef,
    /// What the scan says of itself, without its files.
    config: FileScanConfig,
    source: Arc<ParquetSource>,
    /// The same source for what statistics were asked of already.
    of_left: Arc<ParquetSource>,
    /// Whether the files are far away, where it is time to wait for them.
    is_remote: bool,
    /// The most bytes of decoded columns that a task keeps from their filter to the rows that it gives. What is above
    /// is decoded again.
    kept_bytes: usize,
    /// What dictionaries cannot give.
    refusals: Refusals,
    costs: Mutex<Costs>,
}

/// What tasks took.
#[derive(Debug, Default)]
struct Costs {
    begun: usize,
    fruitless: usize,
    /// Measured tasks whose decoder has filtered, that have ended and were not looked at yet.
    ended: Vec<Ended>,
    whole: Cost,
    late: Cost,
}

/// A measured task that has ended: the partition that it has read, and what it took.
#[derive(Debug, Clone, Copy)]
struct Ended {
    partition: usize,
    cost: Duration,
}

#[derive(Debug, Default, Clone, Copy)]
struct Cost {
    tasks: usize,
    /// Nanoseconds for a row.
    per_row: f64,
}

impl Trial {
    pub(super) fn is_late(&self) -> bool {
        self.way == Way::Late
    }
}

impl Cost {
    /// Others that run beside the first tasks only ever make these slower; what tasks long ago took counts for less.
    fn add(&mut self, per_row: f64) {
        self.per_row = match self.tasks {
            0 => per_row,
            tasks if tasks < TRIED => self.per_row.min(per_row),
            _ => (self.per_row + per_row) / 2.0,
        };
        self.tasks += 1;
    }
}

impl Costs {
    /// How the next task reads.
    fn begin(&mut self) -> Trial {
        let number = self.begun;
        self.begun += 1;
        let is_tried = self.are_known();
        // One of each, side by side.
        let is_measured = number % AGAIN < 2 || !(is_tried || self.fruitless >= FRUITLESS);
        let is_late = match is_tried {
            true => (self.late.per_row <= self.whole.per_row) != (number % AGAIN == 1),
            false => is_measured && !number.is_multiple_of(2),
        };
        let way = if is_late { Way::Late } else { Way::Whole };
        Trial { way, is_measured, looked_at: Arc::default() }
    }

    /// A measured task has ended whose decoder has filtered. Gives those to look at now: what all tasks took is looked
    /// through to find what some took, which is not worth it for each.
    fn ended(&mut self, task: Ended) -> Option<Vec<Ended>> {
        self.ended.push(task);
        let enough = if self.are_known() || self.fruitless >= FRUITLESS { 1 } else { TRIED };
        (self.ended.len() >= enough).then(|| std::mem::take(&mut self.ended))
    }

    /// Whether both ways were tried.
    fn are_known(&self) -> bool {
        self.whole.tasks.min(self.late.tasks) >= TRIED
    }

    /// A task is done. Where no filter could be evaluated, or all rows were left out by statistics, nothing is learnt.
    fn end(&mut self, way: Way, rows: usize, took: Duration) {
        if rows == 0 {
            self.fruitless += 1;
            return;
        }
        let cost = match way {
            Way::Whole => &mut self.whole,
            Way::Late => &mut self.late,
        };
        cost.add(took.as_nanos() as f64 / rows as f64);
    }
}

impl LateMaterialization {
    /// Of a scan of Parquet files with a filter that its decoder does not evaluate. Of one column, which the filter
    /// needs, nothing could be left out.
    pub(super) fn of(scan: &Arc<dyn ExecutionPlan>, kept_bytes: usize) -> Option<Self> {
        let config = file_scan(scan)?;
        let source: &dyn Any = config.file_source.as_ref();
        let source = source.downcast_ref::<ParquetSource>()?;
        let mut options = source.table_parquet_options().clone();
        if options.global.pushdown_filters || source.filter().is_none() || scan.schema().fields().len() < 2 {
            return None;
        }
        options.global.pushdown_filters = true;
        // One condition may be there so that another one does not fail: they stay in their order.
        options.global.reorder_filters = false;
        options.global.max_predicate_cache_size = Some(kept_bytes);
        let mut of_left = options.clone();
        of_left.global.pruning = false;
        of_left.global.bloom_filter_on_read = false;
        // They share their metrics with the other one.
        let of_left = Arc::new(source.clone().with_table_parquet_options(of_left));
        let source = Arc::new(source.clone().with_table_parquet_options(options));
        let is_remote = is_far(&config.object_store_url);
        let refusals = Refusals::of(scan.schema().fields().len());
        let (config, schema) = (without_files(config), scan.schema());
        Some(Self { schema, config, source, of_left, is_remote, kept_bytes, refusals, costs: Mutex::default() })
    }

    /// Bytes that a task holds for it.
    pub(super) fn kept_bytes(&self, trial: &Trial) -> usize {
        if trial.is_late() { self.kept_bytes } else { 0 }
    }

    /// How the next task reads.
    pub(super) fn begin(&self) -> Trial {
        self.costs.lock().begin()
    }

    /// The rows of what is left of a partition of the scan.
    pub(super) async fn execute(
        &self,
        trial: &Trial,
        partition: usize,
        left: &Left,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        // Each look at a dictionary would be a request.
        if !self.is_remote {
            let (config, source, schema) = (&self.config, self.source.as_ref(), Arc::clone(&self.schema));
            let task = LateTask { config, source, schema, partition, left };
            let narrowed = task.narrowed(&self.refusals, self.kept_bytes, Arc::clone(&context)).await?;
            if let Some(Narrowed { batches, rows }) = narrowed {
                // The same again, where it is read again.
                let _known = trial.looked_at.set(rows);
                return Ok(batches);
            }
        }
        let source = Arc::clone(if left.is_known { &self.of_left } else { &self.source });
        // Only what is measured is looked for by its number, which costs more the higher it is.
        let number = if trial.is_measured { partition } else { 0 };
        rows_of_files(&self.config, source, left.to_files(), number, context)
    }

    /// Measures a task, if it is one that is measured.
    pub(super) fn clock(&self, trial: &Trial) -> ReadClock {
        ReadClock::new(trial.is_measured, self.is_remote)
    }

    /// A task has read all of a partition of the scan, and given so many rows, which took `cost` with what was done
    /// above, where rows are filtered.
    pub(super) fn end(&self, trial: &Trial, partition: usize, given: usize, cost: Duration) {
        if !trial.is_measured {
            return;
        }
        let known = match trial.way {
            Way::Whole => Some(given),
            Way::Late => trial.looked_at.get().copied(),
        };
        if let Some(rows) = known {
            self.costs.lock().end(trial.way, rows, cost);
            return;
        }
        let Some(ended) = self.costs.lock().ended(Ended { partition, cost }) else { return };
        let metrics = self.source.metrics().clone_inner();
        let mut rows: HashMap<usize, usize> = ended.iter().map(|task| (task.partition, 0)).collect();
        for metric in metrics.iter() {
            if let Some(rows) = metric.partition().and_then(|partition| rows.get_mut(&partition)) {
                *rows += looked_at(metric.value());
            }
        }
        let mut costs = self.costs.lock();
        for Ended { partition, cost } in ended {
            costs.end(Way::Late, rows[&partition], cost);
        }
    }
}

/// Rows whose filtered columns the decoder has looked at first.
fn looked_at(value: &MetricValue) -> usize {
    match value.name() {
        "pushdown_rows_pruned" | "pushdown_rows_matched" => value.as_usize(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(costs: &mut Costs, late_nanos: u64, tasks: usize) -> usize {
        let mut late = 0;
        for _ in 0..tasks {
            let trial = costs.begin();
            let is_late = trial.way == Way::Late;
            late += usize::from(is_late);
            if trial.is_measured {
                let nanos = if is_late { late_nanos } else { 1_000 };
                costs.end(trial.way, 1_000, Duration::from_nanos(nanos));
            }
        }
        late
    }

    #[test]
    fn the_cheaper_way_is_taken_once_both_were_tried() {
        let mut costs = Costs::default();
        assert_eq!(ways(&mut costs, 100, 6), 3);
        assert_eq!(ways(&mut costs, 100, 20), 20);
        let mut costs = Costs::default();
        assert_eq!(ways(&mut costs, 5_000, 24), 3);
    }

    #[test]
    fn files_that_become_others_are_noticed() {
        let mut costs = Costs::default();
        ways(&mut costs, 100, 200);
        // From here on late tasks cost more.
        ways(&mut costs, 5_000, 400);
        assert!(ways(&mut costs, 5_000, 320) < 40);
    }
}
