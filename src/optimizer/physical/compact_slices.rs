//! Puts a `CompactExec` between operators that give slices of large batches and operators that count them.
//!
//! Only where memory is scarce: with plenty, slices do no harm, and plans stay as DataFusion makes them.
//!
//! ```text
//! SortPreservingMergeExec          SortPreservingMergeExec
//!   SortExec                  ->     CompactExec
//!                                      SortExec
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{CompactExec, FlushExec, FoldExec, IntoPlan, LoopJoinExec, MapExec, PLENTY, PlanExt, RollUpExec};

#[derive(Debug)]
pub(super) struct CompactSlices;

impl PhysicalOptimizerRule for CompactSlices {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if BlockyardOptions::from_config(config).memory_limit.bytes() > PLENTY {
            return Ok(plan);
        }
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if !counts_batches(node.as_ref()) || !node.children().into_iter().any(|child| gives_slices(child.as_ref()))
            {
                return Ok(Transformed::no(node));
            }
            let compacted = |child: &Arc<dyn ExecutionPlan>| match gives_slices(child.as_ref()) {
                true => CompactExec::new(Arc::clone(child)).into_plan(),
                false => Arc::clone(child),
            };
            let children = node.children().into_iter().map(compacted).collect();
            Ok(Transformed::yes(replace_children_if_necessary(node, children)?))
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "compact_slices"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn counts_batches(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<RepartitionExec>()
        || plan.is::<SortExec>()
        || plan.is::<SortPreservingMergeExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<HashJoinExec>()
}

/// Whether batches can be slices, or larger than the session's: a function of the user gives what it likes.
fn gives_slices(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<SortExec>()
        || plan.is::<AggregateExec>()
        || plan.is_operator::<FoldExec>()
        || plan.is_operator::<FlushExec>()
        || plan.is_operator::<RollUpExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is_operator::<LoopJoinExec>()
        || plan.is::<WindowAggExec>()
        || plan.is_operator::<MapExec>()
        || (plan.is::<ProjectionExec>() && gives_slices(plan.children()[0].as_ref()))
}
