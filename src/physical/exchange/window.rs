//! Blocks in random order while they come: each is taken from the next few.

use datafusion::common::Result;
use futures::TryStreamExt;
use futures::stream::BoxStream;

use super::StoredBlock;
use super::slices::Slice;
use crate::block::{TaskId, row_random};
use crate::store::BlockHandle;

/// The input, and the blocks that wait for their turn.
pub(super) struct Window {
    blocks: BoxStream<'static, Result<StoredBlock>>,
    /// How many parts of the ids of blocks say which rows they are of: those with the same ones stay together.
    parts: usize,
    seed: u64,
    size: usize,
    waiting: Vec<Vec<BlockHandle>>,
    /// The last of them, and whether there may be more of it.
    open: Option<TaskId>,
    input_ended: bool,
    given: usize,
}

impl Window {
    /// Takes blocks from `size` that wait; they come in the order of the dataset.
    pub(super) fn new(blocks: BoxStream<'static, Result<StoredBlock>>, parts: usize, seed: u64, size: usize) -> Self {
        Self { blocks, parts, seed, size, waiting: Vec::new(), open: None, input_ended: false, given: 0 }
    }

    /// The number of the next output block, and its rows.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Vec<Slice>)>> {
        // One more than the window has been begun when the last of the window has ended.
        while self.waiting.len() <= self.size && !self.input_ended {
            let Some(StoredBlock { id, handle }) = self.blocks.try_next().await? else {
                self.input_ended = true;
                break;
            };
            let id = id.first_parts(self.parts);
            match self.waiting.last_mut().filter(|_| self.open.as_ref() == Some(&id)) {
                Some(open) => open.push(handle),
                None => {
                    self.waiting.push(vec![handle]);
                    self.open = Some(id);
                }
            }
        }
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let number = self.given;
        self.given += 1;
        let chosen = row_random(self.seed, number as u64, 0) % self.waiting.len().min(self.size) as u64;
        // What came last stays the last: there may be more of it.
        let blocks = self.waiting.remove(chosen as usize).into_iter();
        let whole = |handle: BlockHandle| Slice { length: handle.metadata().num_rows, offset: 0, handle };
        Ok(Some((number, blocks.map(whole).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::super::slices::tests::blocks;
    use super::*;
    use futures::{StreamExt, stream};

    /// Numbers of rows of the output blocks, where input block i has i.
    async fn order(seed: u64, size: usize) -> Vec<usize> {
        let input: Vec<usize> = (1..=50).collect();
        let blocks: Vec<_> = blocks(&input).into_iter().map(Ok).collect();
        let mut window = Window::new(stream::iter(blocks).boxed(), 1, seed, size);
        let mut out = Vec::new();
        while let Some((number, slices)) = window.next().await.unwrap() {
            assert_eq!(number, out.len());
            out.push(slices[0].length);
        }
        out
    }

    #[tokio::test]
    async fn blocks_come_at_most_a_window_early_and_all_come() {
        for size in [1, 2, 7, 100] {
            let given = order(3, size).await;
            let mut sorted = given.clone();
            sorted.sort();
            assert_eq!(sorted, (1..=50).collect::<Vec<_>>());
            assert!(given.iter().enumerate().all(|(place, number)| *number <= place + size), "{given:?}");
        }
        assert_eq!(order(3, 1).await, (1..=50).collect::<Vec<_>>());
        assert_eq!(order(3, 7).await, order(3, 7).await);
        assert_ne!(order(3, 7).await, order(4, 7).await);
    }
}
