//! Gives each read task one file where that is what may be lost or diverted: a step above diverts rows, so that what is
//! kept of them names the file and the row, or tasks may give up.
//!
//! Correct because tasks are read in their order, and each file of a task becomes one. It comes after the rules that
//! fuse and schedule stages, since it looks for the read below a stage.
//!
//! ```text
//! MapExec: ReadParquet->MapBatches(f)        MapExec: ReadParquet->MapBatches(f)
//!   ReadExec: ReadParquet, tasks=4      ->     ReadExec: ReadParquet, tasks=1000
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{IntoPlan, MapExec, PlanExt, QueueExec, ReadExec};

#[derive(Debug)]
pub(super) struct ReadByFile;

impl PhysicalOptimizerRule for ReadByFile {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let may_lose = BlockyardOptions::from_config(config).max_errored_blocks.allows_any();
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if let Some(read) = node.operator::<ReadExec>().filter(|_| may_lose) {
                return Ok(read.by_file().map_or(Transformed::no(node), |read| Transformed::yes(read.into_plan())));
            }
            let diverts = node.operator::<MapExec>().is_some_and(|map| map.steps().iter().any(|step| step.diverts()));
            match by_file(&node).filter(|_| diverts).transpose()? {
                Some(rewritten) => Ok(Transformed::yes(rewritten)),
                None => Ok(Transformed::no(node)),
            }
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "read_by_file"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan with one file in each task, if tasks of it are those of a read of files.
fn by_file(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<Arc<dyn ExecutionPlan>>> {
    if let Some(read) = plan.operator::<ReadExec>() {
        return Some(Ok(read.by_file()?.into_plan()));
    }
    let input = plan
        .children()
        .into_iter()
        .next()
        .filter(|_| plan.is_operator::<MapExec>() || plan.is_operator::<QueueExec>())?;
    let rewritten = by_file(input)?;
    Some(rewritten.and_then(|input| replace_children_if_necessary(Arc::clone(plan), vec![input])))
}
