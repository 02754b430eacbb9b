//! A side of a join that was written.

use std::ops::RangeInclusive;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use parking_lot::Mutex;

use crate::physical::exchange::Runs;
use crate::physical::tasks::{Output, RowBalance, stream_of};

/// Bytes that a hash table takes for each row.
const TABLE_ROW_BYTES: usize = 32;

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
