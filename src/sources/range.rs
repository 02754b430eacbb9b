//! Ray's `range(n)`: the integers from 0 in a column `id`.

use std::sync::Arc;

use datafusion::arrow::array::{Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;

use super::{Datasource, DatasourceTable};
use crate::arguments;
use crate::call::{Planning, TableFunction};

arguments! {
    /// Which integers.
    #[derive(Debug)]
    pub(crate) struct RangeArguments {
        /// How many there are.
        n: u64,
        /// Read tasks, which are blocks; as many as the size asks for if not said.
        override_num_blocks: Option<usize>,
    }
}

/// `range(n)`.
#[derive(Debug)]
pub(crate) struct ReadRange;

impl TableFunction for ReadRange {
    type Arguments = RangeArguments;

    fn name(&self) -> &'static str {
        "range"
    }

    fn about(&self) -> &'static str {
        "The integers from 0 in a column `id`."
    }

    // DataFusion has range(start, end, step).
    fn takes(&self, by_position: usize, by_name: usize) -> bool {
        by_position <= 1 || by_name > 0
    }

    fn plan(&self, arguments: RangeArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        DatasourceTable::plan(Range::try_new(arguments.n)?, arguments.override_num_blocks, &planning)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, RangeArguments)>> {
        Ok(DatasourceTable::scanned(plan, |range: &Range, override_num_blocks| {
            (Vec::new(), RangeArguments { n: range.n, override_num_blocks })
        }))
    }
}

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
