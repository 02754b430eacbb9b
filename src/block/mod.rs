//! Blocks: the unit that is stored, queued, counted and written as one thing.

mod copy;
mod id;
mod metadata;
mod output_buffer;
mod pieces;
mod views;

pub(crate) use copy::copied;
pub use id::TaskId;
pub(crate) use id::{mix, row_random};
pub use metadata::BlockMetadata;
pub(crate) use metadata::sliced_bytes;
pub(crate) use output_buffer::{OutputBuffer, rows_of_block};
pub(crate) use pieces::pieces;
pub(crate) use views::{compact_views, has_views, with_plain_types};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;

/// A disjoint run of rows of a dataset, as a list of record batches that are never concatenated unless a function asks
/// for whole blocks. Rows keep their order.
#[derive(Debug, Clone)]
pub struct Block {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Block {
    /// A block of these batches, all of `schema`.
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, batches }
    }

    /// Columns of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows, in order.
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// The rows, in order, leaving the block.
    pub fn into_batches(self) -> Vec<RecordBatch> {
        self.batches
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Rows and bytes. Linear in the number of buffers.
    pub fn metadata(&self) -> BlockMetadata {
        BlockMetadata::of(&self.batches)
    }

    /// The rows `offset .. offset + length` without copying them.
    pub fn slice(&self, mut offset: usize, mut length: usize) -> Self {
        let mut batches = Vec::new();
        for batch in &self.batches {
            if length == 0 {
                break;
            }
            if offset >= batch.num_rows() {
                offset -= batch.num_rows();
                continue;
            }
            let take = length.min(batch.num_rows() - offset);
            batches.push(batch.slice(offset, take));
            length -= take;
            offset = 0;
        }
        Self { schema: SchemaRef::clone(&self.schema), batches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::record_batch;

    #[test]
    fn slices_across_batches() {
        let a = record_batch!(("x", Int32, [1, 2, 3])).unwrap();
        let b = record_batch!(("x", Int32, [4, 5])).unwrap();
        let block = Block::new(a.schema(), vec![a, b]);
        let cut = block.slice(2, 2);
        assert_eq!(cut.batches().iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(block.slice(5, 1).num_rows(), 0);
    }
}
