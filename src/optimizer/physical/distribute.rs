//! Marks the stages that executors may run, where a session has executors.
//!
//! A stage is what is made of the tasks of one read, each by itself: its steps, and aggregates of what there is. Above
//! the first rows of some order, each stage gives its own. It is the last of the rules, since what it marks has to be
//! the same in all processes that plan a statement.
//!
//! ```text
//! AggregateExec: mode=Final                      AggregateExec: mode=Final
//!   AggregateExec: mode=Partial            ->      RemoteExec: AggregateExec, tasks=200
//!     ReadExec: ReadParquet, tasks=200               AggregateExec: mode=Partial
//!                                                      ReadExec: ReadParquet, tasks=200
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{IntoPlan, RemoteExec, is_first_rows_of_stage, is_worthwhile};

#[derive(Debug)]
pub(super) struct Distribute;

impl PhysicalOptimizerRule for Distribute {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if BlockyardOptions::from_config(config).cluster.trim().is_empty() {
            return Ok(plan);
        }
        let mark = |node: Arc<dyn ExecutionPlan>| {
            if is_worthwhile(&node) {
                return Ok(Transformed::new(RemoteExec::new(node).into_plan(), true, TreeNodeRecursion::Jump));
            }
            if is_first_rows_of_stage(&node) {
                let Some(first) = first_rows_of_part(&node) else { return Ok(Transformed::no(node)) };
                let first = replace_children_if_necessary(node, vec![RemoteExec::new(first).into_plan()])?;
                return Ok(Transformed::new(first, true, TreeNodeRecursion::Jump));
            }
            Ok(Transformed::no(node))
        };
        plan.transform_down(mark).data()
    }

    fn name(&self) -> &str {
        "distribute"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The same first rows by a sort of its own: one that gives its rows to another, and has the filter of that, would tell
/// it to leave out what it is about to give.
fn first_rows_of_part(sort: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let sort = sort.downcast_ref::<SortExec>()?;
    let own = SortExec::new(sort.expr().clone(), Arc::clone(sort.input())).with_fetch(sort.fetch());
    Some(Arc::new(own.with_preserve_partitioning(sort.preserve_partitioning())))
}
