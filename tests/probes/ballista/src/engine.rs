//! How an executor runs tasks whose results are not shuffled: it says that there are none.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::{ExecutionEngine, QueryStageExecutor};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;

pub(crate) struct NoShuffleEngine;

impl ExecutionEngine for NoShuffleEngine {
    fn create_query_stage_exec(
        &self,
        _job_id: JobId,
        _stage_id: usize,
        _task_id: usize,
        _global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        _work_dir: &str,
        _config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        // Every stage has an operator on top that writes for a shuffle. It is left away.
        let body = plan.children().first().map(|body| Arc::clone(body));
        let body = body.ok_or_else(|| internal_datafusion_err!("a stage without a plan"))?;
        Ok(Arc::new(RunOnly { body }))
    }
}

#[derive(Debug)]
struct RunOnly {
    body: Arc<dyn ExecutionPlan>,
}

impl Display for RunOnly {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "RunOnly({})", self.body.name())
    }
}

#[async_trait::async_trait]
impl QueryStageExecutor for RunOnly {
    async fn execute_query_stage(&self, _: usize, ctx: Arc<TaskContext>) -> Result<Vec<ShuffleWritePartition>> {
        for partition in 0..self.body.output_partitioning().partition_count() {
            let mut stream = self.body.execute(partition, Arc::clone(&ctx))?;
            while stream.try_next().await?.is_some() {}
        }
        Ok(Vec::new())
    }

    /// The scheduler takes it that there are none.
    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        Vec::new()
    }
}
