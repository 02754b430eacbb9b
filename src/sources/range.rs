//! Ray's `range(n)`: the integers from 0 in a column `id`. Of `range_tensor` (`range_tensor.rs`) it is the source too.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;

use super::{Datasource, DatasourceTable, ReadPlan, ReadRequest, ReadTask};
use crate::arguments;
use crate::call::{Planning, TableFunction};
use crate::tensors::TensorShape;

/// A batch of tensors has about so many bytes at most.
const TENSOR_BATCH_BYTES: usize = 1 << 20;

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
        let arguments = DatasourceTable::scanned(plan, |range: &Range, override_num_blocks| {
            let is_plain = range.shape.is_none();
            is_plain.then(|| (Vec::new(), RangeArguments { n: range.n, override_num_blocks }))
        });
        Ok(arguments.flatten())
    }
}

/// `0 .. n`, as integers, or as tensors that are filled with them.
#[derive(Debug)]
pub(crate) struct Range {
    pub(super) n: u64,
    pub(super) shape: Option<TensorShape>,
    schema: SchemaRef,
}

impl Range {
    /// The first `n` integers. Fails when they do not fit the column.
    pub(crate) fn try_new(n: u64) -> Result<Self> {
        Self::of(n, None, Field::new("id", DataType::Int64, false))
    }

    /// Tensors of a shape in a column `data`, each filled with its number.
    pub(crate) fn of_tensors(n: u64, shape: TensorShape) -> Result<Self> {
        let field = shape.field("data", DataType::Int64);
        Self::of(n, Some(shape), field)
    }

    fn of(n: u64, shape: Option<TensorShape>, field: Field) -> Result<Self> {
        if n > i64::MAX as u64 {
            return plan_err!("range(n) takes at most {}, got {n}", i64::MAX);
        }
        Ok(Self { n, shape, schema: Arc::new(Schema::new(vec![field])) })
    }
}

#[async_trait]
impl Datasource for Range {
    fn name(&self) -> &str {
        if self.shape.is_some() { "ReadRangeTensor" } else { "ReadRange" }
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn num_rows(&self) -> Option<usize> {
        Some(self.n as usize)
    }

    fn is_anywhere(&self) -> bool {
        true
    }

    async fn plan(&self, request: ReadRequest<'_>) -> Result<ReadPlan> {
        let row_bytes = 8 * self.shape.as_ref().map_or(1, TensorShape::size);
        let parallelism = request.parallelism(Some((self.n as usize).saturating_mul(row_bytes)));
        // More tasks than rows would be empty.
        let tasks = (parallelism as u64).min(self.n).max(1);
        let cut = |k: u64| (u128::from(k) * u128::from(self.n) / u128::from(tasks)) as i64;
        let task = |k| {
            let (from, to, shape, schema) = (cut(k), cut(k + 1), self.shape.clone(), self.schema());
            let rows = (to - from) as usize;
            let task = ReadTask::from(Arc::new(RangeTask { from, to, shape, schema }));
            ReadTask { rows: Some(rows), bytes: Some(rows.saturating_mul(row_bytes)), ..task }
        };
        Ok((0..tasks).map(task).collect::<Vec<_>>().into())
    }
}

#[derive(Debug)]
struct RangeTask {
    from: i64,
    to: i64,
    shape: Option<TensorShape>,
    schema: SchemaRef,
}

impl PartitionStream for RangeTask {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batch_size = context.session_config().batch_size();
        let of_bytes = |shape: &TensorShape| (TENSOR_BATCH_BYTES / (8 * shape.size())).max(1);
        let batch_size = self.shape.as_ref().map_or(batch_size, |shape| batch_size.min(of_bytes(shape))) as i64;
        let (mut next, to, shape, schema) = (self.from, self.to, self.shape.clone(), Arc::clone(&self.schema));
        let batches = std::iter::from_fn(move || {
            let end = to.min(next + batch_size);
            (next < end).then(|| {
                let column = column(next..end, shape.as_ref())?;
                next = end;
                Ok(RecordBatch::try_new(Arc::clone(&schema), vec![column])?)
            })
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream::iter(batches)))
    }
}

/// The numbers, or a tensor of each.
fn column(numbers: std::ops::Range<i64>, shape: Option<&TensorShape>) -> Result<ArrayRef> {
    let Some(shape) = shape else {
        return Ok(Arc::new(Int64Array::from_iter_values(numbers)));
    };
    let values = numbers.flat_map(|number| std::iter::repeat_n(number, shape.size()));
    shape.column(Arc::new(Int64Array::from_iter_values(values)))
}
