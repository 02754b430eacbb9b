//! Moves `randomize_block_order` behind the map operators above it, so that they fuse with what is below.
//!
//! Correct because maps work block by block: permuting blocks before or after gives the same blocks in the same order.
//! It stops at an all-to-all, and at anything that depends on the order of rows. Off with `optimize_reorder_stages`.
//!
//! ```text
//! MapBatches: f               RandomizeBlockOrder
//!   RandomizeBlockOrder  ->     MapBatches: f
//!     Scan                        Scan
//! ```

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::config::BlockyardOptions;
use crate::logical::{MapNode, MapOperator, RandomizeBlocksNode, extension, node_of};

#[derive(Debug)]
pub(super) struct ReorderRandomizeBlocks;

impl OptimizerRule for ReorderRandomizeBlocks {
    fn name(&self) -> &str {
        "reorder_randomize_blocks"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !BlockyardOptions::from_config(&config.options()).optimize_reorder_stages || !moves_over_blocks(&plan) {
            return Ok(Transformed::no(plan));
        }
        let inputs = plan.inputs();
        let Some(randomize) = inputs.first().and_then(|input| node_of::<RandomizeBlocksNode>(input)) else {
            return Ok(Transformed::no(plan));
        };
        let below = randomize.input().clone();
        let moved = plan.with_new_exprs(plan.expressions(), vec![below])?;
        Ok(Transformed::yes(extension(randomize.over(moved))))
    }
}

fn moves_over_blocks(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(p) => !p.expr.iter().any(|e| e.is_volatile()),
        // A sample depends on where rows stand.
        _ => node_of::<MapNode>(plan).is_some_and(|map| !matches!(map.operator(), MapOperator::Sample { .. })),
    }
}
