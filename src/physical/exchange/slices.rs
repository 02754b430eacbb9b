//! Buckets that are runs of rows of stored blocks: no row is copied, only slices are handed on.

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::{ExchangeScheme, StoredBlock};
use crate::block::{mix, row_random};
use crate::physical::stored::block_rows;
use crate::store::BlockHandle;

/// A run of rows of one block.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) handle: BlockHandle,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// The buckets of a scheme that hands slices around.
pub(super) fn buckets(scheme: &ExchangeScheme, blocks: Vec<StoredBlock>) -> Vec<Vec<Slice>> {
    match *scheme {
        ExchangeScheme::Spread { num_blocks } => spread(&blocks, num_blocks),
        ExchangeScheme::BlockOrder { seed, .. } => block_order(blocks, seed),
        ExchangeScheme::Slices { num_blocks } => equal_runs(&blocks, num_blocks),
        ExchangeScheme::Random { .. }
        | ExchangeScheme::Hash { .. }
        | ExchangeScheme::Range { .. }
        | ExchangeScheme::Sized(_) => Vec::new(),
    }
}

/// Cuts only where a multiple of rows/n falls inside a block.
fn equal_runs(blocks: &[StoredBlock], num_blocks: usize) -> Vec<Vec<Slice>> {
    let total: usize = blocks.iter().map(|b| b.handle.metadata().num_rows).sum();
    let cut = |k: usize| k * total / num_blocks;
    let mut buckets = vec![Vec::new(); num_blocks];
    let mut bucket = 0;
    let mut row = 0;
    for block in blocks {
        let rows = block.handle.metadata().num_rows;
        let mut offset = 0;
        while offset < rows {
            while cut(bucket + 1) <= row {
                bucket += 1;
            }
            let length = (rows - offset).min(cut(bucket + 1) - row);
            buckets[bucket].push(Slice { handle: block.handle.clone(), offset, length });
            offset += length;
            row += length;
        }
    }
    buckets
}

fn spread(blocks: &[StoredBlock], num_blocks: usize) -> Vec<Vec<Slice>> {
    let part = |bucket: usize| {
        let of_block = |(index, block): (usize, &StoredBlock)| {
            let rows = block.handle.metadata().num_rows;
            // Blocks start with different buckets: else small blocks would fill only the last ones.
            let k = (bucket + index) % num_blocks;
            let (from, to) = (k * rows / num_blocks, (k + 1) * rows / num_blocks);
            (to > from).then(|| Slice { handle: block.handle.clone(), offset: from, length: to - from })
        };
        blocks.iter().enumerate().filter_map(of_block).collect()
    };
    (0..num_blocks).map(part).collect()
}

fn block_order(blocks: Vec<StoredBlock>, seed: u64) -> Vec<Vec<Slice>> {
    let mut blocks = blocks;
    blocks.sort_by_cached_key(|b| (row_random(seed, b.id.hash(), 0), mix(b.id.hash())));
    let whole = |b: StoredBlock| vec![Slice { length: b.handle.metadata().num_rows, offset: 0, handle: b.handle }];
    blocks.into_iter().map(whole).collect()
}

/// The rows of a bucket.
pub(super) fn read(bucket: Vec<Slice>) -> BoxStream<'static, Result<RecordBatch>> {
    stream::iter(bucket)
        .map(|slice| block_rows(slice.handle, slice.offset..slice.offset + slice.length))
        .flatten()
        .boxed()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::block::{Block, TaskId};
    use crate::store::NextUse;
    use crate::store::tests::store;
    use datafusion::arrow::array::Int64Array;
    use std::sync::Arc;

    /// Stored blocks with so many rows of eight bytes.
    pub(in super::super) fn blocks(rows: &[usize]) -> Vec<StoredBlock> {
        let store = store(usize::MAX);
        let stored = |(i, rows): (usize, &usize)| {
            let column = Arc::new(Int64Array::from(vec![0; *rows])) as _;
            let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
            let handle =
                store.put(Block::new(batch.schema(), vec![batch]), NextUse::AfterInput, &Arc::default()).unwrap();
            StoredBlock { id: TaskId::root(i), handle }
        };
        rows.iter().enumerate().map(stored).collect()
    }

    fn lengths(buckets: &[Vec<Slice>]) -> Vec<Vec<usize>> {
        buckets.iter().map(|b| b.iter().map(|s| s.length).collect()).collect()
    }

    #[test]
    fn equal_runs_cut_only_where_they_must() {
        assert_eq!(lengths(&equal_runs(&blocks(&[4, 4]), 2)), [[4], [4]]);
        assert_eq!(lengths(&equal_runs(&blocks(&[5, 3]), 2)), [vec![4], vec![1, 3]]);
        assert_eq!(lengths(&equal_runs(&blocks(&[1, 1, 1]), 1)), [[1, 1, 1]]);
    }

    #[test]
    fn more_blocks_than_rows_gives_empty_ones() {
        assert_eq!(lengths(&equal_runs(&blocks(&[2]), 4)), [vec![], vec![1], vec![], vec![1]]);
        assert_eq!(lengths(&equal_runs(&blocks(&[]), 2)), [vec![0; 0], vec![]]);
    }

    #[test]
    fn spread_takes_a_part_of_every_block() {
        assert_eq!(lengths(&spread(&blocks(&[4, 2]), 2)), [[2, 1], [2, 1]]);
        let rows: Vec<usize> = lengths(&spread(&blocks(&[1; 8]), 4)).iter().map(|b| b.iter().sum()).collect();
        assert_eq!(rows, [2, 2, 2, 2]);
    }

    #[test]
    fn block_order_is_a_permutation_that_the_seed_gives() {
        let blocks = blocks(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let order = |seed| lengths(&block_order(blocks.clone(), seed)).concat();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort();
        assert_eq!(sorted, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
