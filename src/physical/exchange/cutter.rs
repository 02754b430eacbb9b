//! Cuts the blocks of a plan to sizes while they come: no row is copied, only slices are handed on, and nothing waits
//! for the last block.

use std::collections::VecDeque;

use async_trait::async_trait;
use datafusion::common::{Result, internal_err};
use futures::TryStreamExt;
use futures::stream::BoxStream;

use super::buckets::NextBucket;
use super::slices::Slice;
use crate::block::TaskId;
use crate::store::BlockHandle;

/// Where blocks end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockSize {
    /// After so many rows. `strict`: in all blocks but the last; otherwise no block has rows of two tasks of the input.
    Rows {
        /// Rows of a block.
        rows: usize,
        /// Whether tasks of the input are joined.
        strict: bool,
    },
    /// Before they have more bytes than this, unless a single row has.
    Bytes(usize),
    /// After equal parts of `total_rows`.
    Parts {
        /// Number of output blocks.
        num_blocks: usize,
        /// Rows of the input.
        total_rows: usize,
    },
}

/// The input, as far as it has not been handed on.
pub(super) struct Cutter {
    blocks: BoxStream<'static, Result<(TaskId, BlockHandle)>>,
    size: BlockSize,
    /// Rows that were not handed on, and the tasks that they are of.
    pending: VecDeque<(TaskId, Slice)>,
    pending_rows: usize,
    input_ended: bool,
    /// Output blocks, and the rows in them.
    given: usize,
    given_rows: usize,
}

impl Cutter {
    /// Cuts `blocks`, which come in the order of the dataset, each with the task that its rows are of.
    pub(super) fn new(blocks: BoxStream<'static, Result<(TaskId, BlockHandle)>>, size: BlockSize) -> Self {
        let pending = VecDeque::new();
        Self { blocks, size, pending, pending_rows: 0, input_ended: false, given: 0, given_rows: 0 }
    }

    /// Waits for the next block. Returns whether there is one.
    async fn pull(&mut self) -> Result<bool> {
        if self.input_ended {
            return Ok(false);
        }
        match self.blocks.try_next().await? {
            Some((task, handle)) => {
                let length = handle.metadata().num_rows;
                self.pending_rows += length;
                if length > 0 {
                    self.pending.push_back((task, Slice { handle, offset: 0, length }));
                }
            }
            None => self.input_ended = true,
        }
        Ok(!self.input_ended)
    }

    /// Waits until there are so many rows, or no more will come. Returns how many of them there are.
    async fn up_to(&mut self, rows: usize) -> Result<usize> {
        while self.pending_rows < rows && self.pull().await? {}
        Ok(rows.min(self.pending_rows))
    }

    /// At most so many rows of the first task that has some.
    async fn of_one_task(&mut self, rows: usize) -> Result<usize> {
        let (mut found, mut place) = (0, 0);
        while found < rows {
            while place >= self.pending.len() {
                if !self.pull().await? {
                    return Ok(found);
                }
            }
            let (task, slice) = &self.pending[place];
            if *task != self.pending[0].0 {
                break;
            }
            found += slice.length;
            place += 1;
        }
        Ok(found.min(rows))
    }

    /// Rows that have so many bytes together, at least one.
    async fn rows_within(&mut self, bytes: usize) -> Result<usize> {
        let (mut rows, mut left, mut place) = (0, bytes as f64, 0);
        loop {
            while place >= self.pending.len() {
                if !self.pull().await? {
                    return Ok(rows);
                }
            }
            let (_, slice) = &self.pending[place];
            let size = slice.handle.metadata();
            let row_bytes = size.size_bytes as f64 / size.num_rows as f64;
            if slice.length as f64 * row_bytes > left {
                let fitting = (left / row_bytes) as usize;
                return Ok((rows + fitting.min(slice.length)).max(1));
            }
            rows += slice.length;
            left -= slice.length as f64 * row_bytes;
            place += 1;
        }
    }

    fn take(&mut self, rows: usize) -> Vec<Slice> {
        let (mut taken, mut left) = (Vec::new(), rows);
        while left > 0
            && let Some((task, mut slice)) = self.pending.pop_front()
        {
            if slice.length > left {
                let rest =
                    Slice { handle: slice.handle.clone(), offset: slice.offset + left, length: slice.length - left };
                self.pending.push_front((task, rest));
                slice.length = left;
            }
            left -= slice.length;
            taken.push(slice);
        }
        self.pending_rows -= rows;
        taken
    }
}

#[async_trait]
impl NextBucket for Cutter {
    async fn next(&mut self) -> Result<Option<(usize, Vec<Slice>)>> {
        let (rows, ends) = match self.size {
            BlockSize::Rows { rows, strict: true } => (self.up_to(rows).await?, false),
            BlockSize::Rows { rows, strict: false } => (self.of_one_task(rows).await?, false),
            BlockSize::Bytes(bytes) => (self.rows_within(bytes).await?, false),
            BlockSize::Parts { num_blocks, total_rows } => {
                let end = (self.given + 1) * total_rows / num_blocks;
                (self.up_to(end - self.given_rows.min(end)).await?, self.given == num_blocks)
            }
        };
        // Parts may be empty, but are as many as was said.
        let is_part = matches!(self.size, BlockSize::Parts { .. });
        if ends || (rows == 0 && !is_part) {
            return match self.up_to(1).await? {
                0 => Ok(None),
                _ => internal_err!("there are more rows than the {} that were counted", self.given_rows),
            };
        }
        let slices = self.take(rows);
        self.given += 1;
        self.given_rows += rows;
        Ok(Some((self.given - 1, slices)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::slices::tests::blocks;
    use super::*;
    use futures::{StreamExt, stream};

    /// The rows of each output block.
    async fn cut(size: BlockSize, input: &[usize]) -> Vec<usize> {
        let handles: Vec<_> = blocks(input).into_iter().map(|block| Ok((block.id, block.handle))).collect();
        let mut cutter = Cutter::new(stream::iter(handles).boxed(), size);
        let mut out = Vec::new();
        while let Some((number, slices)) = cutter.next().await.unwrap() {
            assert_eq!(number, out.len());
            out.push(slices.iter().map(|slice| slice.length).sum());
        }
        out
    }

    #[tokio::test]
    async fn strict_blocks_have_the_rows_that_were_asked_for() {
        let strict = |rows| BlockSize::Rows { rows, strict: true };
        assert_eq!(cut(strict(4), &[3, 3, 3]).await, [4, 4, 1]);
        assert_eq!(cut(strict(100), &[3, 0, 3]).await, [6]);
        assert_eq!(cut(strict(2), &[6]).await, [2, 2, 2]);
        assert_eq!(cut(strict(2), &[0]).await, [0; 0]);
    }

    #[tokio::test]
    async fn otherwise_tasks_of_the_input_are_cut_but_not_joined() {
        let size = BlockSize::Rows { rows: 4, strict: false };
        assert_eq!(cut(size, &[3, 9, 0, 4]).await, [3, 4, 4, 1, 4]);
    }

    #[tokio::test]
    async fn bytes_are_not_exceeded_but_by_a_single_row() {
        // Rows of eight bytes.
        assert_eq!(cut(BlockSize::Bytes(32), &[3, 3, 3]).await, [4, 4, 1]);
        assert_eq!(cut(BlockSize::Bytes(3), &[2]).await, [1, 1]);
    }

    #[tokio::test]
    async fn parts_are_as_many_as_was_said() {
        let parts = |num_blocks, total_rows| BlockSize::Parts { num_blocks, total_rows };
        assert_eq!(cut(parts(3, 8), &[5, 3]).await, [2, 3, 3]);
        assert_eq!(cut(parts(4, 2), &[2]).await, [0, 1, 0, 1]);
        assert_eq!(cut(parts(2, 0), &[]).await, [0, 0]);
    }
}
