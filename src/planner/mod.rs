//! From logical to physical: one small planner per node. The only place that knows both.

mod combine;
mod formats;
mod guards;
mod local_shuffle;
mod map;
mod part;
mod pipeline;
mod query_planner;
mod random_shuffle;
mod randomize_blocks;
mod repartition;
mod resume;
mod shared;
mod sink_table;
mod unions;
mod write;

pub(crate) use formats::{block_formats, written_format};
pub(crate) use query_planner::BlockyardQueryPlanner;
pub(crate) use sink_table::SinkTable;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

/// Plans one kind of node.
#[async_trait]
trait NodePlanner: Debug + Send + Sync {
    /// The operator for `node` over its planned inputs; `None` for other nodes.
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>>;
}

/// One planner per node of `logical`.
fn node_planners() -> Vec<Arc<dyn NodePlanner>> {
    vec![
        Arc::new(map::PlanMap),
        Arc::new(random_shuffle::PlanRandomShuffle),
        Arc::new(repartition::PlanRepartition),
        Arc::new(randomize_blocks::PlanRandomizeBlocks),
        Arc::new(local_shuffle::PlanLocalShuffle),
        Arc::new(combine::PlanCombinations),
        Arc::new(part::PlanPart),
        Arc::new(resume::PlanResume),
        Arc::new(shared::PlanShared),
        Arc::new(pipeline::PlanWindows),
        Arc::new(pipeline::PlanPipeline),
    ]
}
