//! Rows of a stream, as many as are asked for, whatever its batches.

use std::collections::VecDeque;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::TryStreamExt;

/// A stream, and the batches of it that were not used up yet.
pub(super) struct RowReader {
    stream: SendableRecordBatchStream,
    pending: VecDeque<RecordBatch>,
    taken: usize,
}

impl RowReader {
    /// Reads a stream of which so many rows were taken before.
    pub(super) fn new(stream: SendableRecordBatchStream, taken: usize) -> Self {
        Self { stream, pending: VecDeque::new(), taken }
    }

    /// Rows that were taken, also before this began.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Rows that can be taken at once; 0 at the end.
    pub(super) async fn available(&mut self) -> Result<usize> {
        while self.pending.is_empty() {
            match self.stream.try_next().await? {
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => self.pending.push_back(batch),
                None => return Ok(0),
            }
        }
        Ok(self.pending[0].num_rows())
    }

    /// At most as many rows as are available.
    pub(super) fn take(&mut self, rows: usize) -> RecordBatch {
        self.taken += rows;
        let front = &mut self.pending[0];
        let out = front.slice(0, rows);
        match front.num_rows() - rows {
            0 => drop(self.pending.pop_front()),
            left => *front = front.slice(rows, left),
        }
        out
    }

    /// Number of rows of the whole stream; reads the rest of it.
    pub(super) async fn count_all(&mut self) -> Result<usize> {
        loop {
            match self.available().await? {
                0 => return Ok(self.taken),
                rows => drop(self.take(rows)),
            }
        }
    }
}
