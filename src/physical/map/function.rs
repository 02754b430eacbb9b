//! A call of a function on batches of the size that it asked for.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;

use super::push::{Push, push_stream};
use super::{MapStep, StepTask};
use crate::block::{Block, OutputBuffer, TaskId};
use crate::error::ErrorContext;
use crate::functions::BatchSize;
use crate::functions::FunctionRef;

/// Calls a function.
#[derive(Debug)]
pub(crate) struct FunctionStep {
    operator: &'static str,
    function: FunctionRef,
    batch_size: BatchSize,
    target_block_bytes: usize,
    input_schema: SchemaRef,
    schema: SchemaRef,
}

impl FunctionStep {
    /// `operator` is Ray's name for it, like `MapBatches`. Whole blocks end at `target_block_bytes`.
    pub(crate) fn new(
        operator: &'static str,
        function: FunctionRef,
        batch_size: BatchSize,
        target_block_bytes: usize,
        input_schema: SchemaRef,
        schema: SchemaRef,
    ) -> Self {
        Self { operator, function, batch_size, target_block_bytes, input_schema, schema }
    }
}

impl MapStep for FunctionStep {
    fn name(&self) -> String {
        format!("{}({})", self.operator, self.function.name())
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn prepare(&self) -> Result<()> {
        self.function.prepare().while_doing(|| format!("building {}", self.name()))
    }

    fn run(&self, batches: SendableRecordBatchStream, task: &StepTask) -> Result<SendableRecordBatchStream> {
        let push = FunctionPush {
            name: self.name(),
            function: self.function.clone(),
            schema: Arc::clone(&self.schema),
            task: task.id.clone(),
            next_row: 0,
            batcher: Batcher::new(self.batch_size, self.target_block_bytes, Arc::clone(&self.input_schema)),
        };
        Ok(push_stream(Arc::clone(&self.schema), batches, push))
    }
}

struct FunctionPush {
    name: String,
    function: FunctionRef,
    schema: SchemaRef,
    task: TaskId,
    next_row: usize,
    batcher: Batcher,
}

impl FunctionPush {
    fn call(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        let first = self.next_row;
        self.next_row += batch.num_rows();
        let result = self.function.call(batch).and_then(|batch| self.function.conform(batch, &self.schema));
        let doing = || format!("running {} on rows {first}..{} of task {}", self.name, self.next_row, self.task);
        out.push_back(result.while_doing(doing)?);
        Ok(())
    }
}

impl Push for FunctionPush {
    fn push(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        self.batcher.push(batch);
        while let Some(batch) = self.batcher.next(false)? {
            self.call(batch, out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        while let Some(batch) = self.batcher.next(true)? {
            self.call(batch, out)?;
        }
        Ok(())
    }
}

/// Cuts and joins batches; rows are copied only where a batch is put together from several.
enum Batcher {
    AsTheyCome(VecDeque<RecordBatch>),
    Rows { size: usize, schema: SchemaRef, pending: VecDeque<RecordBatch>, rows: usize },
    WholeBlocks(OutputBuffer),
}

impl Batcher {
    fn new(size: BatchSize, target_block_bytes: usize, schema: SchemaRef) -> Self {
        match size {
            BatchSize::AsTheyCome => Self::AsTheyCome(VecDeque::new()),
            BatchSize::Rows(size) => Self::Rows { size, schema, pending: VecDeque::new(), rows: 0 },
            BatchSize::WholeBlock => Self::WholeBlocks(OutputBuffer::new(schema, target_block_bytes)),
        }
    }

    fn push(&mut self, batch: RecordBatch) {
        match self {
            Self::AsTheyCome(pending) => pending.push_back(batch),
            Self::Rows { pending, rows, .. } => {
                *rows += batch.num_rows();
                pending.push_back(batch);
            }
            Self::WholeBlocks(buffer) => buffer.push(batch),
        }
    }

    fn next(&mut self, ended: bool) -> Result<Option<RecordBatch>> {
        match self {
            Self::AsTheyCome(pending) => Ok(pending.pop_front()),
            Self::Rows { size, schema, pending, rows } => {
                if *rows == 0 || (*rows < *size && !ended) {
                    return Ok(None);
                }
                let mut wanted = (*size).min(*rows);
                *rows -= wanted;
                let mut pieces = Vec::new();
                while let Some(batch) = pending.pop_front() {
                    if batch.num_rows() > wanted {
                        pending.push_front(batch.slice(wanted, batch.num_rows() - wanted));
                        pieces.push(batch.slice(0, wanted));
                        break;
                    }
                    wanted -= batch.num_rows();
                    pieces.push(batch);
                    if wanted == 0 {
                        break;
                    }
                }
                Ok(Some(join(schema, pieces)?))
            }
            Self::WholeBlocks(buffer) => {
                let block = if ended { buffer.next_final() } else { buffer.next_full() };
                match block.filter(|b| b.num_rows() > 0) {
                    Some(block) => Ok(Some(join(&Arc::clone(block.schema()), Block::into_batches(block))?)),
                    None => Ok(None),
                }
            }
        }
    }
}

fn join(schema: &SchemaRef, mut pieces: Vec<RecordBatch>) -> Result<RecordBatch> {
    match pieces.len() {
        1 => Ok(pieces.swap_remove(0)),
        _ => Ok(concat_batches(schema, &pieces)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::record_batch;

    fn sizes(size: BatchSize, input: &[usize]) -> Vec<usize> {
        let one = record_batch!(("x", Int32, [1, 2, 3, 4, 5, 6, 7, 8, 9])).unwrap();
        let mut batcher = Batcher::new(size, usize::MAX, one.schema());
        let mut out = Vec::new();
        for rows in input {
            batcher.push(one.slice(0, *rows));
            out.extend(std::iter::from_fn(|| batcher.next(false).unwrap()).map(|b| b.num_rows()));
        }
        out.extend(std::iter::from_fn(|| batcher.next(true).unwrap()).map(|b| b.num_rows()));
        out
    }

    #[test]
    fn batches_have_the_size_asked_for() {
        assert_eq!(sizes(BatchSize::AsTheyCome, &[3, 5]), [3, 5]);
        assert_eq!(sizes(BatchSize::Rows(4), &[3, 5, 9]), [4, 4, 4, 4, 1]);
        assert_eq!(sizes(BatchSize::Rows(100), &[3, 5]), [8]);
        assert_eq!(sizes(BatchSize::WholeBlock, &[3, 5]), [8]);
        assert_eq!(sizes(BatchSize::Rows(4), &[]), [0; 0]);
    }
}
