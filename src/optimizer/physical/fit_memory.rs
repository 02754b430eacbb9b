//! Plans that would be refused, because they work on more at once than the limit has room for, work on less at once:
//! the inputs of a union come one after the other, and fewer streams of a read have a row group open.
//!
//! Correct because streams of a read pull their tasks from one queue, and because the tasks of a union are the same in
//! whatever order they run. It comes after all rules that add operators, whose needs it counts.
//!
//! ```text
//! UnionExec                            TurnsExec
//!   ReadExec: ReadParquet, tasks=4  ->   ReadExec: ReadParquet, tasks=4, streams=1
//!   ReadExec: ReadParquet, tasks=4       ReadExec: ReadParquet, tasks=4, streams=1
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::BlockyardOptions;
use crate::physical::{fitted, uses_ours};

#[derive(Debug)]
pub(super) struct FitMemory;

impl PhysicalOptimizerRule for FitMemory {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !uses_ours(&plan) {
            return Ok(plan);
        }
        fitted(plan, BlockyardOptions::from_config(config).memory_limit.bytes(), config.execution.batch_size.get())
    }

    fn name(&self) -> &str {
        "fit_memory"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
