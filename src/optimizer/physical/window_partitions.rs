//! Lets windows that keep all of their input keep one partition of it.
//!
//! ```text
//! WindowAggExec: sum(x)          WindowPartitionsExec: sum(x)
//!   SortExec: g            ->      SortExec: g
//! ```
//!
//! A window that runs along with its rows (`BoundedWindowAggExec`) keeps only those in its frame and stays as it is.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::WindowAggExec;

use crate::physical::{IntoPlan, WindowPartitionsExec};

#[derive(Debug)]
pub(super) struct WindowPartitions;

impl PhysicalOptimizerRule for WindowPartitions {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewrite = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<WindowAggExec>() {
            Some(window) => Ok(Transformed::yes(WindowPartitionsExec::new(window.clone()).into_plan())),
            None => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "window_partitions"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
