//! Hash joins that are not expected to fit in memory become bucket joins, of which no side has to; a hash join would
//! fail.
//!
//! A hash join stays when what its build side takes at the most, or eight times what it is expected to take, is within
//! an equal share of the memory of all hash joins of the plan. Should an estimate be wrong, the query is planned again
//! with `prefer_spilling_joins`.
//!
//! ```text
//! HashJoinExec: on=[(a, b)]          BucketJoinExec: on=[(a, b)]
//!   ReadExec (large)           ->      ReadExec
//!   ReadExec (larger)                  ReadExec
//! ```
//!
//! A build side that is small beside a read or a stage of ours is held once by all threads: DataFusion would deal out
//! the rows of both sides from 1 MiB on, and copy all of the larger one. The more threads there are, the longer they
//! would wait for the one that builds the table.
//!
//! Joins for `NOT IN` write the rows of the subquery first: whether there is any null among them decides about all
//! rows, which a bucket does not know. With a further condition it would depend on the row, and they stay.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, Result};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};

use super::cardinality::max_rows;
use super::estimate::expected_rows;
use crate::config::BlockyardOptions;
use crate::physical::{BucketJoinExec, IntoPlan, schema_bytes, uses_ours};

/// Bytes that a hash table takes for each row, beside the row.
const HASH_ENTRY_BYTES: usize = 24;
/// Estimates may be wrong by this factor. Where a side turns out small, a bucket join takes as long as a hash join; a
/// hash table that does not fit ends the query, which is planned and run again.
const SAFETY: usize = 8;
/// What it takes to put a row into a hash table, beside dealing it out.
const BUILD_COST: usize = 3;
/// A build side with at most so many bytes, or this part of the limit, is held by all threads together.
const SMALL: usize = 32 << 20;
const SMALL_PART: usize = 32;

#[derive(Debug)]
pub(super) struct SpillJoins;

impl PhysicalOptimizerRule for SpillJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        let joins = hash_joins(&plan);
        if joins == 0 {
            return Ok(plan);
        }
        let share = match options.prefer_spilling_joins {
            true => 0,
            false => options.memory_limit.bytes() / joins,
        };
        let small = Small {
            bytes: SMALL.min(options.memory_limit.bytes() / SMALL_PART),
            share,
            part: BUILD_COST * config.execution.target_partitions.saturating_sub(1).max(1),
        };
        let rewrite = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<HashJoinExec>() {
            Some(join) if is_dealt_out(join, &small) => {
                let join = join.builder().with_partition_mode(PartitionMode::CollectLeft);
                Ok(Transformed::yes(join.build_exec()?))
            }
            Some(join) if can_be_cut(join) && !fits(join, share) => {
                Ok(Transformed::yes(BucketJoinExec::new(join, smaller_side(join))?.into_plan()))
            }
            _ => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "spill_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether buckets know enough to join their rows.
fn can_be_cut(join: &HashJoinExec) -> bool {
    !join.null_aware || join.filter().is_none()
}

fn hash_joins(plan: &Arc<dyn ExecutionPlan>) -> usize {
    usize::from(plan.is::<HashJoinExec>()) + plan.children().into_iter().map(hash_joins).sum::<usize>()
}

/// What a small side of a join is.
struct Small {
    /// It is known to have at most so many bytes.
    bytes: usize,
    /// It may be expected to have as many as the join may take.
    share: usize,
    /// Then the other side has so many times its rows.
    part: usize,
}

/// Whether all rows of the larger side would be copied for a small one.
fn is_dealt_out(join: &HashJoinExec, small: &Small) -> bool {
    if *join.partition_mode() != PartitionMode::Partitioned || !uses_ours(join.right()) {
        return false;
    }
    let known = |side: &Arc<dyn ExecutionPlan>| Some(max_rows(side)?.saturating_mul(build_row_bytes(side)));
    let is_known = known(join.left())
        .is_some_and(|left| left <= small.bytes && known(join.right()).is_none_or(|right| right / 4 >= left));
    let is_expected = || {
        let (left, right) = (expected_rows(join.left())?, expected_rows(join.right())?);
        Some(right / small.part >= left && expected_bytes(join.left())? <= small.share)
    };
    is_known || is_expected() == Some(true)
}

/// Bytes of a row in a hash table.
pub(super) fn build_row_bytes(side: &Arc<dyn ExecutionPlan>) -> usize {
    schema_bytes(&side.schema()) + HASH_ENTRY_BYTES
}

/// The side that is expected to have fewer bytes, or that tells of nulls.
fn smaller_side(join: &HashJoinExec) -> JoinSide {
    if join.null_aware {
        return JoinSide::Right;
    }
    let bytes = |side| Some(expected_rows(side)? * build_row_bytes(side));
    match (bytes(join.left()), bytes(join.right())) {
        (Some(left), Some(right)) if right < left => JoinSide::Right,
        _ => JoinSide::Left,
    }
}

/// Bytes of a hash table that it is not expected to exceed.
fn expected_bytes(side: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    Some(expected_rows(side)?.saturating_mul(build_row_bytes(side)).saturating_mul(SAFETY))
}

/// Whether the build side is expected to stay within `share` bytes. A side of unknown size is.
fn fits(join: &HashJoinExec, share: usize) -> bool {
    let bytes = |rows: usize| rows.saturating_mul(build_row_bytes(join.left()));
    max_rows(join.left()).is_some_and(|rows| bytes(rows) <= share)
        || expected_bytes(join.left()).map_or(share > 0, |bytes| bytes <= share)
}
