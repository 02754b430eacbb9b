//! Runs of rows of stored blocks: no row is copied, only slices are handed on.

use std::ops::Range;

use super::StoredBlock;
use crate::block::TaskId;
use crate::store::BlockHandle;

/// A run of rows of one block.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) handle: BlockHandle,
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// Blocks of the same rows.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) id: TaskId,
    blocks: Vec<BlockHandle>,
}

impl Group {
    /// Some of its rows.
    pub(super) fn rows(&self, rows: Range<usize>) -> Vec<Slice> {
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

    pub(super) fn num_rows(&self) -> usize {
        self.blocks.iter().map(|handle| handle.metadata().num_rows).sum()
    }
}

/// The blocks by the rows that they are of: the first `parts` parts of their ids say that, whatever the memory in which
/// they are cut. What has the same ones stays together.
pub(super) fn groups(blocks: Vec<StoredBlock>, parts: usize) -> Vec<Group> {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::block::Block;
    use crate::store::NextUse;
    use crate::store::tests::store;
    use datafusion::arrow::array::{Int64Array, RecordBatch};
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

    pub(in super::super) fn lengths(buckets: &[Vec<Slice>]) -> Vec<Vec<usize>> {
        buckets.iter().map(|b| b.iter().map(|s| s.length).collect()).collect()
    }
}
