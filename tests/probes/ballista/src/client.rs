//! Ballista's client, and what else is asked of a scheduler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::ExecutorStoppedParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use datafusion::arrow::array::RecordBatch;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::TryStreamExt;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Outcome;
use crate::gate_exec::GateCodec;

/// What has not ended after so long hangs.
const HUNG: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    url: String,
    session: SessionConfig,
}

/// A job that Ballista's client waits for. The client gives it up when this drops.
pub(crate) struct Job {
    waiting: JoinSet<Ended>,
}

pub(crate) struct Ended {
    pub(crate) result: Outcome<Vec<RecordBatch>>,
    pub(crate) at: Instant,
}

impl Client {
    pub(crate) fn new(scheduler_port: u16) -> Self {
        // A partition is a task, and all that is read comes from the server of an executor: a dead one gives nothing.
        let session = SessionConfig::new_with_ballista()
            .set_str("ballista.planner.adaptive.enabled", "false")
            .set_str("ballista.scheduler.max_partitions_per_task", "1")
            .set_str("ballista.shuffle.force_remote_read", "true")
            .set_str("ballista.client.io_retries_times", "1")
            .set_str("ballista.client.io_retry_wait_time_ms", "100");
        Self { url: format!("http://127.0.0.1:{scheduler_port}"), session }
    }

    pub(crate) fn run(&self, plan: Arc<dyn ExecutionPlan>) -> Job {
        let (url, session) = (self.url.clone(), self.session.clone());
        let run = async move {
            let (config, codec) = (session.ballista_config(), GateCodec::default());
            let id = "ballista-probe".to_owned();
            let rows = execute_physical_plan::<PhysicalPlanNode>(url, &config, plan, &codec, id, session).await?;
            Ok(rows.try_collect().await?)
        };
        let mut waiting = JoinSet::new();
        waiting.spawn(async { Ended { result: run.await, at: Instant::now() } });
        Job { waiting }
    }

    /// Tells the scheduler that an executor is gone.
    pub(crate) async fn executor_stopped(&self, executor_id: String) -> Outcome<()> {
        let endpoint = create_grpc_client_endpoint(self.url.clone(), Some(&GrpcClientConfig::default()))?;
        let mut scheduler = SchedulerGrpcClient::new(endpoint.connect().await?);
        let reason = "its process is dead".to_owned();
        scheduler.executor_stopped(ExecutorStoppedParams { executor_id, reason }).await?;
        Ok(())
    }
}

impl Job {
    /// Waits for the end; nothing when it hangs.
    pub(crate) async fn end(mut self) -> Outcome<Option<Ended>> {
        match timeout(HUNG, self.waiting.join_next()).await {
            Ok(joined) => Ok(joined.transpose()?),
            Err(_) => Ok(None),
        }
    }
}
