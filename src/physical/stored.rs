//! Reads stored blocks.

use std::ops::Range;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::runtime::on_io_thread;
use crate::store::BlockHandle;

/// Batches that are read at once: the one that is waited for and the next.
const READ_AHEAD: usize = 2;

/// The batches of a stored block, in order. What is on disk is read on IO threads, one batch ahead. The block lives until
/// the last batch has been taken, and may leave memory meanwhile.
pub(crate) fn block_batches(handle: BlockHandle) -> BoxStream<'static, Result<RecordBatch>> {
    block_rows(handle, 0..usize::MAX)
}

/// These rows of a stored block. Batches without any of them are not read.
pub(crate) fn block_rows(handle: BlockHandle, rows: Range<usize>) -> BoxStream<'static, Result<RecordBatch>> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (index, length) in handle.batch_rows().iter().enumerate() {
        let (from, to) = (rows.start.max(start), rows.end.min(start + length));
        if from < to {
            parts.push((index, from - start, to - from));
        }
        start += length;
    }
    let batches = stream::iter(parts).map(move |(index, offset, length)| {
        let handle = handle.clone();
        async move {
            let batch = match handle.batch_in_memory(index) {
                Some(batch) => batch,
                None => on_io_thread(move || handle.get_batch(index)).await?,
            };
            Ok(batch.slice(offset, length))
        }
    });
    batches.buffered(READ_AHEAD).boxed()
}
