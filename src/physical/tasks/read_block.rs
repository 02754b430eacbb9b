//! Reads stored blocks.

use std::collections::VecDeque;
use std::ops::Range;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use futures::future::{BoxFuture, ready};
use futures::stream::{self, BoxStream, FuturesOrdered};
use futures::{FutureExt, StreamExt, TryStreamExt};

use crate::runtime::on_io_thread;
use crate::store::BlockHandle;

/// Batches that are read at once: the one that is waited for and the next.
const READ_AHEAD: usize = 2;

/// The batches of a stored block, in order. What is on disk is read on IO threads, one batch ahead. The block lives
/// until the last batch has been taken, and may leave memory meanwhile.
pub(crate) fn block_batches(handle: BlockHandle) -> BoxStream<'static, Result<RecordBatch>> {
    block_rows(handle, 0..usize::MAX)
}

/// These rows of a stored block. Batches without any of them are not read.
pub(crate) fn block_rows(handle: BlockHandle, rows: Range<usize>) -> BoxStream<'static, Result<RecordBatch>> {
    let mut parts = VecDeque::new();
    let mut start = 0;
    for (index, length) in handle.batch_rows().iter().enumerate() {
        let (from, to) = (rows.start.max(start), rows.end.min(start + length));
        if from < to {
            parts.push_back(SlicePart { index, offset: from - start, rows: to - from });
        }
        start += length;
    }
    let parts = SliceParts { handle, parts, reading: FuturesOrdered::new() };
    stream::try_unfold(parts, |mut parts| async move {
        let next: Result<_> = parts.next().await;
        Ok(next?.map(|batch| (batch, parts)))
    })
    .boxed()
}

/// Rows of one batch.
struct SlicePart {
    index: usize,
    offset: usize,
    rows: usize,
}

impl SlicePart {
    fn of(&self, batch: RecordBatch) -> Result<RecordBatch> {
        match batch.num_rows() {
            rows if rows < self.offset + self.rows => {
                internal_err!("batch {} of a stored block has {rows} rows, less than were put", self.index)
            }
            rows if rows == self.rows => Ok(batch),
            _ => Ok(batch.slice(self.offset, self.rows)),
        }
    }
}

/// What is still to come of a block.
struct SliceParts {
    handle: BlockHandle,
    parts: VecDeque<SlicePart>,
    /// The first of them, which are read from disk.
    reading: FuturesOrdered<BoxFuture<'static, Result<RecordBatch>>>,
}

impl SliceParts {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while self.reading.len() < READ_AHEAD
            && let Some(part) = self.parts.pop_front()
        {
            match self.handle.batch_in_memory(part.index) {
                Some(batch) if self.reading.is_empty() => return part.of(batch).map(Some),
                Some(batch) => self.reading.push_back(ready(part.of(batch)).boxed()),
                None => {
                    let handle = self.handle.clone();
                    let read = on_io_thread(move || handle.get_batch(part.index).and_then(|batch| part.of(batch)));
                    self.reading.push_back(read.boxed());
                }
            }
        }
        self.reading.try_next().await
    }
}
