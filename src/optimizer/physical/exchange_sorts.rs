//! Sorts of much data become an exchange: runs are sorted by the threads that read, and buckets of them merged and written
//! by several threads. DataFusion's own sort merges everything in one.
//!
//! Correct because buckets are ranges of the order and gathered in order. A sort stays DataFusion's when it is for the first rows only, when it
//! is known to be small, and when nothing below it is ours.
//!
//! ```text
//! SortPreservingMergeExec: [k ASC]        GatherExec: order=[k ASC]
//!   SortExec: [k ASC]                ->     ExchangeExec: scheme=range(k ASC)
//!     ReadExec: ReadParquet                   ReadExec: ReadParquet
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::config::BlockyardOptions;
use crate::physical::{ExchangeExec, ExchangeScheme, GatherExec, can_sort, row_bytes, uses_ours};

/// What is known to have fewer bytes is sorted at once.
const SMALL: usize = 64 << 20;
/// The same as a part of the memory limit.
const SMALL_PART: usize = 16;

#[derive(Debug)]
pub(super) struct ExchangeSorts;

impl PhysicalOptimizerRule for ExchangeSorts {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let limit = BlockyardOptions::from_config(config).memory_limit.bytes();
        let threads = config.execution.target_partitions;
        let rewrite = |node: Arc<dyn ExecutionPlan>| match sorted(&node) {
            Some((input, order)) if is_large(input, limit) && can_sort(order, &input.schema()) => {
                let scheme = ExchangeScheme::Range { order: order.clone(), boundaries: None };
                let exchange = Arc::new(ExchangeExec::new(Arc::clone(input), scheme, threads));
                let known = node.equivalence_properties().clone();
                Ok(Transformed::yes(Arc::new(GatherExec::sorted(exchange, known)) as _))
            }
            _ => Ok(Transformed::no(node)),
        };
        plan.transform_down(rewrite).data()
    }

    fn name(&self) -> &str {
        "exchange_sorts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// What is sorted as a whole, and by what.
fn sorted(node: &Arc<dyn ExecutionPlan>) -> Option<(&Arc<dyn ExecutionPlan>, &LexOrdering)> {
    let (sort, one) = match node.downcast_ref::<SortPreservingMergeExec>() {
        Some(merge) => {
            let sort = merge.input().downcast_ref::<SortExec>();
            (sort.filter(|sort| merge.fetch().is_none() && sort.expr() == merge.expr())?, true)
        }
        None => {
            let sort = node.downcast_ref::<SortExec>()?;
            (sort, node.output_partitioning().partition_count() == 1)
        }
    };
    let input = match sort.input().downcast_ref::<CoalescePartitionsExec>() {
        Some(coalesce) if coalesce.fetch().is_none() => coalesce.input(),
        _ => sort.input(),
    };
    (one && sort.fetch().is_none()).then_some((input, sort.expr()))
}

fn is_large(input: &Arc<dyn ExecutionPlan>, limit: usize) -> bool {
    let rows = StatisticsContext::new()
        .compute(input.as_ref(), &StatisticsArgs::new())
        .ok()
        .and_then(|statistics| statistics.num_rows.get_value().copied());
    let small = SMALL.min(limit / SMALL_PART);
    uses_ours(input) && rows.is_none_or(|rows| rows.saturating_mul(row_bytes(input.as_ref())) > small)
}
