//! Puts a `ReserveExec` below windows that keep all of their input without counting it.
//!
//! ```text
//! WindowAggExec: sum(x)          WindowAggExec: sum(x)
//!   SortExec                ->     ReserveExec: for=WindowAggExec
//!                                    SortExec
//! ```
//!
//! A window that runs along with its rows (`BoundedWindowAggExec`) keeps only those in its frame and stays as it is.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::physical::ReserveExec;

#[derive(Debug)]
pub(super) struct ReserveWindows;

impl PhysicalOptimizerRule for ReserveWindows {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let rewrite = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<WindowAggExec>() {
            Some(window) if !window.input().is::<ReserveExec>() => {
                let reserve = ReserveExec::new(Arc::clone(window.input()), node.name().to_owned());
                Ok(Transformed::yes(replace_children_if_necessary(node, vec![Arc::new(reserve)])?))
            }
            _ => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "reserve_windows"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
