//! Ray's `range(n)`: the integers from 0 in a column `id`.

use std::sync::Arc;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;

use super::Datasource;

/// `0 .. n`.
#[derive(Debug)]
pub(crate) struct Range {
    n: u64,
    schema: SchemaRef,
}

impl Range {
    /// The first `n` integers. Fails when they do not fit the column.
    pub(crate) fn try_new(n: u64) -> Result<Self> {
        if n > i64::MAX as u64 {
            return plan_err!("range(n) takes at most {}, got {n}", i64::MAX);
        }
        Ok(Self { n, schema: Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)])) })
    }
}

impl Datasource for Range {
    fn name(&self) -> &str {
        "ReadRange"
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn estimated_bytes(&self) -> Option<usize> {
        Some((self.n as usize).saturating_mul(8))
    }

    fn num_rows(&self) -> Option<usize> {
        Some(self.n as usize)
    }

    fn sql_call(&self) -> Option<String> {
        Some(format!("range({})", self.n))
    }

    fn read_tasks(&self, parallelism: usize) -> Result<Vec<Arc<dyn PartitionStream>>> {
        // More tasks than rows would be empty.
        let tasks = (parallelism as u64).min(self.n).max(1);
        let cut = |k: u64| (u128::from(k) * u128::from(self.n) / u128::from(tasks)) as i64;
        let task = |k| Arc::new(RangeTask { from: cut(k), to: cut(k + 1), schema: self.schema() }) as _;
        Ok((0..tasks).map(task).collect())
    }
}

#[derive(Debug)]
struct RangeTask {
    from: i64,
    to: i64,
    schema: SchemaRef,
}

impl PartitionStream for RangeTask {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batch_size = context.session_config().batch_size() as i64;
        let (mut next, to, schema) = (self.from, self.to, Arc::clone(&self.schema));
        let batches = std::iter::from_fn(move || {
            let end = to.min(next + batch_size);
            (next < end).then(|| {
                let column = Int64Array::from_iter_values(next..end);
                next = end;
                Ok(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(column)])?)
            })
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream::iter(batches)))
    }
}
