//! Hash joins that are not expected to fit in memory become bucket joins, of which no side has to; a hash join would fail.
//!
//! A hash join stays when twice what its build side is estimated to take is within an equal share of the memory of all hash
//! joins of the plan. Should an estimate be wrong, the query is planned again with `prefer_spilling_joins`.
//!
//! ```text
//! HashJoinExec: on=[(a, b)]          BucketJoinExec: on=[(a, b)]
//!   ReadExec (large)           ->      ReadExec
//!   ReadExec (larger)                  ReadExec
//! ```
//!
//! Null-aware anti joins stay: whether there is any null decides about all rows, which a bucket does not know.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::config::BlockyardOptions;
use crate::physical::{BucketJoinExec, schema_bytes};

/// Bytes that a hash table takes for each row, beside the row.
const HASH_ENTRY_BYTES: usize = 24;
/// Estimates may be wrong by this factor.
const SAFETY: usize = 2;

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
        let rewrite = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<HashJoinExec>() {
            Some(join) if !join.null_aware && !fits(join, share) => {
                Ok(Transformed::yes(Arc::new(BucketJoinExec::new(join)?) as _))
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

fn hash_joins(plan: &Arc<dyn ExecutionPlan>) -> usize {
    usize::from(plan.is::<HashJoinExec>()) + plan.children().into_iter().map(hash_joins).sum::<usize>()
}

/// Whether the build side is expected to stay within `share` bytes. A side of unknown size is.
fn fits(join: &HashJoinExec, share: usize) -> bool {
    let build = join.left();
    let rows = StatisticsContext::new()
        .compute(build.as_ref(), &StatisticsArgs::new())
        .ok()
        .and_then(|statistics| statistics.num_rows.get_value().copied());
    match rows {
        Some(rows) => {
            let bytes = rows.saturating_mul(schema_bytes(&build.schema()) + HASH_ENTRY_BYTES);
            bytes.saturating_mul(SAFETY) <= share
        }
        None => share > 0,
    }
}
