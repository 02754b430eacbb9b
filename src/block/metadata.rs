//! What is known of a block without its rows.

use datafusion::arrow::array::RecordBatch;

/// Size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockMetadata {
    /// Number of rows.
    pub num_rows: usize,
    /// Bytes of the rows themselves, whatever larger buffers they are slices of.
    pub size_bytes: usize,
}

impl BlockMetadata {
    pub(crate) fn of(batches: &[RecordBatch]) -> Self {
        Self {
            num_rows: batches.iter().map(RecordBatch::num_rows).sum(),
            size_bytes: batches.iter().map(sliced_bytes).sum(),
        }
    }
}

/// Bytes that the rows of a batch take, counting only the slice of each buffer that they use.
pub(crate) fn sliced_bytes(batch: &RecordBatch) -> usize {
    batch
        .columns()
        .iter()
        .map(|c| c.to_data().get_slice_memory_size().unwrap_or_else(|_| c.get_array_memory_size()))
        .sum()
}
