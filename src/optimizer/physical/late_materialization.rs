//! Lets the decoder of Parquet files evaluate filters where that is faster: columns that the filters do not name are
//! then decoded only of the rows that pass.
//!
//! Correct where the filters are evaluated again above, and before anything that knows rows by their number: below a
//! stage that begins with a filter, or where an operator changes filters while it runs, so that rows have no number.
//! Which way is faster is measured by the first tasks. It comes after the rules that fuse and schedule stages, since it
//! looks for the read below a stage.
//!
//! ```text
//! MapExec: Filter(b < 7)                     MapExec: Filter(b < 7)
//!   ReadExec: ReadParquet, tasks=4      ->     ReadExec: ReadParquet, tasks=4, late materialization
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{IntoPlan, MapExec, PlanExt, ReadExec};

/// Bytes of filtered columns that a task keeps until it knows which rows it gives: for each thread this part of the
/// memory, within bounds. More than the largest would be of use to row groups of a million rows only.
const KEPT_PART: usize = 32;
const MIN_KEPT_BYTES: usize = 4 << 20;
const MAX_KEPT_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct LateMaterialization;

impl PhysicalOptimizerRule for LateMaterialization {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        if !options.optimize_late_materialization {
            return Ok(plan);
        }
        let of_a_task = options.memory_limit.bytes() / (KEPT_PART * config.execution.target_partitions.max(1));
        let kept_bytes = of_a_task.clamp(MIN_KEPT_BYTES, MAX_KEPT_BYTES);
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if let Some(read) = node.operator::<ReadExec>() {
                return Ok(match read.filters_change() {
                    true => Transformed::yes(read.may_filter(kept_bytes).into_plan()),
                    false => Transformed::no(node),
                });
            }
            let Some(map) = node.operator::<MapExec>() else { return Ok(Transformed::no(node)) };
            let first = map.steps().iter().find(|step| !step.keeps_row_numbers());
            let Some(read) = map.input().operator::<ReadExec>().filter(|_| first.is_some_and(|step| step.is_filter()))
            else {
                return Ok(Transformed::no(node));
            };
            let read = read.may_filter(kept_bytes).into_plan();
            Ok(Transformed::yes(replace_children_if_necessary(node, vec![read])?))
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "late_materialization"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
