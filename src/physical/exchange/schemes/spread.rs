//! Every output block gets an equal part of every input block.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;

use super::Scheme;
use crate::physical::exchange::buckets::{Buckets, MapInput, SliceBuckets};
use crate::physical::exchange::slices::{Group, Slice, groups};
use crate::physical::operator::TaskIdentity;

/// So many blocks, each with rows of all blocks.
#[derive(Debug)]
pub(crate) struct SpreadScheme {
    /// Number of output blocks.
    pub(crate) num_blocks: usize,
}

impl fmt::Display for SpreadScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spread(num_blocks={})", self.num_blocks)
    }
}

#[async_trait]
impl Scheme for SpreadScheme {
    fn map_name(&self) -> &'static str {
        "RepartitionMap"
    }

    fn reduce_name(&self) -> &'static str {
        "RepartitionReduce"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        let groups = groups(input.blocks().await?, input.steady_parts());
        Ok(Arc::new(SliceBuckets::new(spread(&groups, self.num_blocks))))
    }

    fn identity<'a>(&self, _input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        TaskIdentity::Own { is_whole: true }
    }

    fn planned_blocks(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<usize> {
        Some(self.num_blocks)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::TaskId;
    use crate::physical::exchange::slices::tests::{blocks, lengths};

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
    }
}
