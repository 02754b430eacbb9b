//! A side of a join that was written.

use std::ops::RangeInclusive;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use parking_lot::Mutex;

use crate::physical::StageMetrics;
use crate::physical::exchange::Runs;
use crate::physical::memory::stage_memory;
use crate::physical::tasks::{Output, RowBalance, stream_of};
use crate::store::{BlockStore, QueryPool};

/// Bytes that a hash table takes for each row.
const TABLE_ROW_BYTES: usize = 32;
/// What is built from a side has this part of the memory of the query: it is held twice for a moment, with a table, and
/// what else was written wants to stay in memory.
const BUILD_PART: usize = 6;
/// It has at most this part of the memory that is free.
const FREE_PART: usize = 3;
/// Less costs more than it saves.
pub(super) const MIN_BUILD_BYTES: usize = 1 << 20;
/// What the sides are called.
pub(super) const LEFT: &str = "JoinLeft";
pub(super) const RIGHT: &str = "JoinRight";

/// Bytes of rows that all threads together may build from: of the memory that the query was planned for, and of what
/// operators and tasks leave free now, since the tables of other joins stay.
pub(super) fn build_memory(context: &TaskContext) -> Result<usize> {
    let store = BlockStore::of_task(context)?;
    let budget = store.budget();
    let free = budget.limit().saturating_sub(budget.used().saturating_sub(budget.blocks()));
    Ok((stage_memory(context)? / BUILD_PART).min(free / FREE_PART).max(MIN_BUILD_BYTES))
}

/// Names the owners of what is written of the sides.
pub(super) fn describe_sides(sides: &[StageMetrics; 2], context: &TaskContext) {
    for (side, name) in sides.iter().zip([LEFT, RIGHT]) {
        side.owner().describe(QueryPool::query_of(context), || name.to_owned());
    }
}

/// What the store did for the sides, beside the other metrics of a join.
pub(super) fn add_side_metrics(metrics: &mut MetricsSet, sides: &[StageMetrics; 2]) {
    for side in sides {
        let of_store = |name: &str| name.ends_with("_bytes") || name.ends_with("_micros");
        let metrics_of_side = side.metrics();
        let of_side = metrics_of_side.iter().filter(|metric| of_store(metric.value().name()));
        of_side.for_each(|metric| metrics.push(Arc::clone(metric)));
    }
}

/// A side that was written.
#[derive(Debug)]
pub(super) struct Side {
    runs: Arc<Runs>,
    pub(super) balance: Arc<RowBalance>,
}

impl Side {
    pub(super) fn new(runs: Arc<Runs>, name: &str, context: &TaskContext) -> Self {
        let balance = RowBalance::new(format!("BucketJoinExec: {name}"), context);
        balance.take(runs.num_rows());
        Self { runs, balance }
    }

    /// The rows with codes in `range`, as a plan with one partition.
    pub(super) fn source(&self, range: RangeInclusive<u64>) -> Result<Arc<dyn ExecutionPlan>> {
        let (runs, schema) = (Arc::clone(&self.runs), Arc::clone(self.runs.schema()));
        let output = Mutex::new(Some(self.balance.output()));
        let rows = RowsOf { schema: Arc::clone(&schema), runs, range, output };
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(rows)], None, None, false, None)?))
    }
}

/// What a side takes as the build side of a hash join.
pub(super) fn build_bytes(side: &Runs) -> usize {
    side.bytes() + TABLE_ROW_BYTES * side.num_rows()
}

#[derive(Debug)]
struct RowsOf {
    schema: SchemaRef,
    runs: Arc<Runs>,
    range: RangeInclusive<u64>,
    /// Counts the rows of the first time that they are read.
    output: Mutex<Option<Output>>,
}

impl PartitionStream for RowsOf {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.runs.stream(0..self.runs.len(), self.range.clone());
        let rows = stream_of(Arc::clone(&self.schema), rows);
        match self.output.lock().take() {
            Some(output) => output.of(rows),
            None => rows,
        }
    }
}
