//! Equal runs of consecutive rows, moving as few rows as that takes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::common::stats::Precision;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::Scheme;
use super::by_size::cut_in_order;
use crate::physical::exchange::StoredBlock;
use crate::physical::exchange::buckets::{Buckets, MapInput, SliceBuckets};
use crate::physical::exchange::cutter::BlockSize;
use crate::physical::exchange::slices::Slice;
use crate::physical::operator::TaskIdentity;

/// So many blocks, of equal numbers of rows.
#[derive(Debug)]
pub(crate) struct SliceScheme {
    /// Number of output blocks.
    pub(crate) num_blocks: usize,
}

impl fmt::Display for SliceScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slices(num_blocks={})", self.num_blocks)
    }
}

#[async_trait]
impl Scheme for SliceScheme {
    fn map_name(&self) -> &'static str {
        "SplitRepartition"
    }

    fn reduce_name(&self) -> &'static str {
        "SplitRepartitionReduce"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        let num_blocks = self.num_blocks;
        match exact_rows(&input.plan) {
            Some(total_rows) => cut_in_order(&input, BlockSize::Parts { num_blocks, total_rows }),
            None => Ok(Arc::new(SliceBuckets::new(equal_runs(&input.blocks().await?, num_blocks)))),
        }
    }

    fn identity<'a>(&self, _input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        TaskIdentity::Own { is_whole: true }
    }

    fn planned_blocks(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<usize> {
        Some(self.num_blocks)
    }

    // Where the number of rows is known, it is known where blocks end.
    fn streams(&self, input: &Arc<dyn ExecutionPlan>) -> bool {
        exact_rows(input).is_some()
    }
}

/// The number of rows of a plan, if that is certain.
fn exact_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    match statistics.num_rows {
        Precision::Exact(rows) => Some(rows),
        Precision::Inexact(_) | Precision::Absent => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::physical::exchange::slices::tests::{blocks, lengths};

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
}
