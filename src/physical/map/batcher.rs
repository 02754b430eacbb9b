//! Batches of the size that a function asks for.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use crate::block::{Block, OutputBuffer};
use crate::functions::BatchSize;

/// Cuts and joins batches; rows are copied only where a batch is put together from several.
pub(super) enum Batcher {
    AsTheyCome(VecDeque<RecordBatch>),
    Rows { size: usize, schema: SchemaRef, pending: VecDeque<RecordBatch>, rows: usize },
    WholeBlocks(OutputBuffer),
}

impl Batcher {
    /// Whole blocks end at `target_block_bytes`.
    pub(super) fn new(size: BatchSize, target_block_bytes: usize, schema: SchemaRef) -> Self {
        match size {
            BatchSize::AsTheyCome => Self::AsTheyCome(VecDeque::new()),
            BatchSize::Rows(size) => Self::Rows { size, schema, pending: VecDeque::new(), rows: 0 },
            BatchSize::WholeBlock => Self::WholeBlocks(OutputBuffer::new(schema, target_block_bytes)),
        }
    }

    pub(super) fn push(&mut self, batch: RecordBatch) {
        match self {
            Self::AsTheyCome(pending) => pending.push_back(batch),
            Self::Rows { pending, rows, .. } => {
                *rows += batch.num_rows();
                pending.push_back(batch);
            }
            Self::WholeBlocks(buffer) => buffer.push(batch),
        }
    }

    /// The next batch that is complete, or when the input has `ended` whatever is left.
    pub(super) fn next(&mut self, ended: bool) -> Result<Option<RecordBatch>> {
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
