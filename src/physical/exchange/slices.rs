//! Buckets that are runs of rows of stored blocks: no row is copied, only slices are handed on.

use std::ops::Range;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::{ExchangeScheme, StoredBlock};
use crate::block::{TaskId, mix, row_random};
use crate::physical::stored::block_rows;
use crate::store::BlockHandle;

/// A run of rows of one block.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) handle: BlockHandle,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// The buckets of a scheme that hands slices around. The first `parts` parts of the ids of blocks say which rows they
/// are of, whatever the memory in which blocks are cut: what has the same ones stays together.
pub(super) fn buckets(scheme: &ExchangeScheme, blocks: Vec<StoredBlock>, parts: usize) -> Vec<Vec<Slice>> {
    match *scheme {
        ExchangeScheme::Spread { num_blocks } => spread(&groups(blocks, parts), num_blocks),
        ExchangeScheme::BlockOrder { seed, .. } => block_order(groups(blocks, parts), seed),
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

/// Blocks of the same rows.
#[derive(Debug, Clone)]
struct Group {
    id: TaskId,
    blocks: Vec<BlockHandle>,
}

impl Group {
    /// Some of its rows.
    fn rows(&self, rows: Range<usize>) -> Vec<Slice> {
        let (mut slices, mut first) = (Vec::new(), 0);
        for handle in &self.blocks {
            let end = first + handle.metadata().num_rows;
            let (from, to) = (rows.start.max(first), rows.end.min(end));
            if from < to {
                slices.push(Slice { handle: handle.clone(), offset: from - first, length: to - from });
            }
            first = end;
        }
        slices
    }

    fn num_rows(&self) -> usize {
        self.blocks.iter().map(|handle| handle.metadata().num_rows).sum()
    }
}

fn groups(blocks: Vec<StoredBlock>, parts: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for block in blocks {
        let id = block.id.first_parts(parts);
        match groups.last_mut().filter(|group| group.id == id) {
            Some(group) => group.blocks.push(block.handle),
            None => groups.push(Group { id, blocks: vec![block.handle] }),
        }
    }
    groups
}

fn spread(groups: &[Group], num_blocks: usize) -> Vec<Vec<Slice>> {
    let mut buckets = vec![Vec::new(); num_blocks];
    for (index, group) in groups.iter().enumerate() {
        let rows = group.num_rows();
        for (bucket, slices) in buckets.iter_mut().enumerate() {
            // Groups start with different buckets: else small ones would fill only the last.
            let k = (bucket + index) % num_blocks;
            let part = k * rows / num_blocks..(k + 1) * rows / num_blocks;
            if !part.is_empty() {
                slices.extend(group.rows(part));
            }
        }
    }
    buckets
}

/// By what tasks are sorted to be in random order.
pub(in crate::physical) fn random_place(seed: u64, task: &TaskId) -> (u64, u64) {
    let hash = task.child(0).hash();
    (row_random(seed, hash, 0), mix(hash))
}

fn block_order(mut groups: Vec<Group>, seed: u64) -> Vec<Vec<Slice>> {
    groups.sort_by_cached_key(|group| random_place(seed, &group.id));
    groups.into_iter().map(|group| group.rows(0..usize::MAX)).collect()
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
    use crate::block::Block;
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
        assert_eq!(lengths(&spread(&groups(blocks(&[4, 2]), 1), 2)), [[2, 1], [2, 1]]);
        let rows: Vec<usize> =
            lengths(&spread(&groups(blocks(&[1; 8]), 1), 4)).iter().map(|b| b.iter().sum()).collect();
        assert_eq!(rows, [2, 2, 2, 2]);
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
        for n in [1, 3, 7] {
            assert_eq!(rows(&spread(&even, n)), rows(&spread(&odd, n)));
        }
        assert_eq!(rows(&block_order(even, 2)), rows(&block_order(odd, 2)));
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
}
