//! Lets windows keep no more of their input than they need.
//!
//! Windows that begin with the partition and end with the row, its peers or the partition are evaluated as the rows
//! come; others keep one partition:
//!
//! ```text
//! WindowAggExec: ntile(3)              WindowPartitionsExec: ntile(3)
//! WindowAggExec: sum(x) OVER (g)   ->  CumulativeWindowsExec: sum(x) OVER (g)
//! BoundedWindowAggExec: rank()         CumulativeWindowsExec: rank()
//! ```
//!
//! Another window that runs along with its rows (`BoundedWindowAggExec`: the last three rows, `lag`) keeps only those
//! in its frame and stays as it is, unless it is of a kind that DataFusion does not evaluate right then: of rows whose
//! key is null, a frame of values before the key, as in `RANGE BETWEEN 5 PRECEDING AND 1 PRECEDING`, has the nulls, and
//! DataFusion has only those that came with the batch. That keeps one partition, too.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::{WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};

use crate::config::BlockyardOptions;
use crate::physical::{CumulativeWindowsExec, IntoPlan, WindowPartitionsExec, are_cumulative};

#[derive(Debug)]
pub(super) struct WindowPartitions;

impl PhysicalOptimizerRule for WindowPartitions {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let running = BlockyardOptions::from_config(config).optimize_cumulative_windows;
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            let with = match (node.downcast_ref::<WindowAggExec>(), node.downcast_ref::<BoundedWindowAggExec>()) {
                (Some(window), _) if are_cumulative(window.window_expr()) => {
                    CumulativeWindowsExec::new(Arc::clone(&node), window.window_expr().to_vec()).into_plan()
                }
                (Some(window), _) => WindowPartitionsExec::new(window.clone()).into_plan(),
                (_, Some(window)) if running && is_cumulative(window) => {
                    CumulativeWindowsExec::new(Arc::clone(&node), window.window_expr().to_vec()).into_plan()
                }
                (_, Some(window)) if loses_nulls(window) => {
                    let (exprs, input) = (window.window_expr().to_vec(), Arc::clone(window.input()));
                    WindowPartitionsExec::new(WindowAggExec::try_new(exprs, input, true)?).into_plan()
                }
                _ => return Ok(Transformed::no(node)),
            };
            Ok(Transformed::yes(with))
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

/// Whether partitions come one after the other, and each row is all that is looked at.
fn is_cumulative(window: &BoundedWindowAggExec) -> bool {
    window.input_order_mode == InputOrderMode::Sorted
        && window.state_observer().is_none()
        && are_cumulative(window.window_expr())
}

/// Whether a frame ends at values before the key of its row, which may be null.
fn loses_nulls(window: &BoundedWindowAggExec) -> bool {
    let schema = window.input().schema();
    window.input_order_mode == InputOrderMode::Sorted
        && window.window_expr().iter().any(|expr| {
            let frame = expr.get_window_frame();
            let ends_before = matches!(&frame.end_bound, WindowFrameBound::Preceding(_));
            let may_be_null = |key: &PhysicalSortExpr| key.expr.nullable(&schema).unwrap_or(true);
            frame.units == WindowFrameUnits::Range && ends_before && expr.order_by().iter().any(may_be_null)
        })
}
