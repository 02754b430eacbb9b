//! Puts a `SortInMemoryExec` above sorts of all rows, which does their work where rows fit in memory.
//!
//! Correct because it gives the same rows in the same order, those with equal keys as they come. Not of few rows, nor
//! in little memory. After the stages of executors have been marked, which know sorts: each process then has it above
//! the same ones. Off with `optimize_sorts_in_memory`.
//!
//! ```text
//! CumulativeWindowsExec                CumulativeWindowsExec
//!   SortExec: [g, k]             ->      SortInMemoryExec
//!     RepartitionExec: hash(g)             SortExec: [g, k]
//!                                            RepartitionExec: hash(g)
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;

use super::cardinality::max_rows;
use super::estimate::expected_rows;
use crate::config::BlockyardOptions;
use crate::physical::{IntoPlan, SortInMemoryExec, can_sort};

/// Fewer rows are sorted as soon this way as that.
const MANY_ROWS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct SortInMemory;

impl PhysicalOptimizerRule for SortInMemory {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        let limit = options.memory_limit.bytes();
        if !options.optimize_sorts_in_memory {
            return Ok(plan);
        }
        let rewrite = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<SortExec>() {
            Some(sort) if is_of_many(sort, limit) && can_sort(sort.expr(), &sort.schema()) => {
                Ok(Transformed::yes(SortInMemoryExec::new(node).into_plan()))
            }
            _ => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "sort_in_memory"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether a sort is one of all rows, which may be many, and has room for some.
fn is_of_many(sort: &SortExec, limit: usize) -> bool {
    let has_room = SortInMemoryExec::room(limit, sort.properties().partitioning.partition_count()).is_some();
    let are_few = |rows: Option<usize>| rows.is_some_and(|rows| rows < MANY_ROWS);
    has_room && sort.fetch().is_none() && !are_few(expected_rows(sort.input())) && !are_few(max_rows(sort.input()))
}
