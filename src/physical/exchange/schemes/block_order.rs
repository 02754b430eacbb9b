//! The blocks as they are, in random order: all of them, or while they come, where each is taken from the next few.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::EmissionType;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use super::Scheme;
use super::by_size::SizeScheme;
use crate::block::{TaskId, mix, row_random};
use crate::physical::exchange::StoredBlock;
use crate::physical::exchange::buckets::{Buckets, MapInput, NextBucket, SliceBuckets, StreamedBuckets};
use crate::physical::exchange::cutter::BlockSize;
use crate::physical::exchange::exec::ExchangeExec;
use crate::physical::exchange::slices::{Group, Slice, groups};
use crate::physical::gather::blocks_in_order;
use crate::physical::memory::block_bytes;
use crate::physical::operator::{PlanExt, TaskIdentity};
use crate::physical::tasks::planned_blocks;
use crate::physical::tasks::ungathered;
use crate::store::BlockHandle;

/// Blocks in random order.
#[derive(Debug)]
pub(crate) struct BlockOrderScheme {
    /// Gives the order.
    pub(crate) seed: u64,
    /// Each block is taken from so many, while they come; from all otherwise.
    pub(crate) window: Option<usize>,
}

impl fmt::Display for BlockOrderScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window {
            None => write!(f, "block_order(seed={})", self.seed),
            Some(window) => write!(f, "block_order(seed={}, window={window})", self.seed),
        }
    }
}

#[async_trait]
impl Scheme for BlockOrderScheme {
    fn map_name(&self) -> &'static str {
        "RandomizeBlockOrder"
    }

    fn reduce_name(&self) -> &'static str {
        "RandomizedBlocks"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        let (seed, parts) = (self.seed, input.steady_parts());
        let Some(size) = self.window else {
            return Ok(Arc::new(SliceBuckets::new(block_order(groups(input.blocks().await?, parts), seed))));
        };
        let MapInput { plan, context, stage, balance, .. } = &input;
        let blocks = blocks_in_order(ungathered(plan), context, stage.owner(), block_bytes(context)?, balance)?;
        let blocks = blocks.map_ok(|(id, handle)| StoredBlock { id, handle }).boxed();
        Ok(Arc::new(StreamedBuckets::new(BlockWindow::new(blocks, parts, seed, size))))
    }

    fn identity<'a>(&self, _input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        TaskIdentity::Own { is_whole: true }
    }

    fn unsteady_order(&self, input: &Arc<dyn ExecutionPlan>) -> Option<&'static str> {
        // It is they that are put in order, and batches, as memory allows them, say where they end.
        let exchange = input.operator::<ExchangeExec>();
        let size = exchange.and_then(|exchange| exchange.scheme().downcast_ref::<SizeScheme>());
        matches!(size, Some(SizeScheme(BlockSize::Bytes(_))))
            .then_some("memory says where blocks of so many bytes end; repartition by rows")
    }

    fn planned_blocks(&self, input: &Arc<dyn ExecutionPlan>) -> Option<usize> {
        planned_blocks(input)
    }

    fn absorbs_maps(&self) -> bool {
        false
    }

    fn emission(&self) -> EmissionType {
        if self.window.is_some() { EmissionType::Incremental } else { EmissionType::Final }
    }
}

/// By what tasks are sorted to be in random order.
pub(crate) fn random_place(seed: u64, task: &TaskId) -> (u64, u64) {
    let hash = task.child(0).hash();
    (row_random(seed, hash, 0), mix(hash))
}

fn block_order(mut groups: Vec<Group>, seed: u64) -> Vec<Vec<Slice>> {
    groups.sort_by_cached_key(|group| random_place(seed, &group.id));
    groups.into_iter().map(|group| group.rows(0..usize::MAX)).collect()
}

/// The input, and the blocks that wait for their turn.
struct BlockWindow {
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

impl BlockWindow {
    /// Takes blocks from `size` that wait; they come in the order of the dataset.
    fn new(blocks: BoxStream<'static, Result<StoredBlock>>, parts: usize, seed: u64, size: usize) -> Self {
        Self { blocks, parts, seed, size, waiting: Vec::new(), open: None, input_ended: false, given: 0 }
    }
}

#[async_trait]
impl NextBucket for BlockWindow {
    async fn next(&mut self) -> Result<Option<(usize, Vec<Slice>)>> {
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
    use super::*;
    use crate::physical::exchange::slices::tests::{blocks, lengths};
    use futures::stream;

    /// Numbers of rows of the output blocks, where input block i has i.
    async fn order(seed: u64, size: usize) -> Vec<usize> {
        let input: Vec<usize> = (1..=50).collect();
        let blocks: Vec<_> = blocks(&input).into_iter().map(Ok).collect();
        let mut window = BlockWindow::new(stream::iter(blocks).boxed(), 1, seed, size);
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

    #[test]
    fn block_order_is_a_permutation_that_the_seed_gives() {
        let blocks = blocks(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let order = |seed| lengths(&block_order(groups(blocks.clone(), 1), seed)).concat();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort();
        assert_eq!(sorted, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn blocks_of_the_same_rows_stay_together_however_they_are_cut() {
        let cut = |rows: &[usize]| {
            let mut blocks = blocks(rows);
            blocks.iter_mut().enumerate().for_each(|(i, block)| block.id = TaskId::root(i / 2).child(i % 2));
            groups(blocks, 1)
        };
        let rows = |buckets: &[Vec<Slice>]| lengths(buckets).iter().map(|b| b.iter().sum()).collect::<Vec<usize>>();
        let (even, odd) = (cut(&[5, 5, 3, 3]), cut(&[1, 9, 6, 0]));
        assert_eq!(rows(&block_order(even, 2)), rows(&block_order(odd, 2)));
    }
}
