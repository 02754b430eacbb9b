//! The scheduler's process.

use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::extension::SessionConfigExt;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpSocket;

use crate::child::{ends_with_the_driver, says_listening};
use crate::gate_exec::GateCodec;
use crate::{EXECUTORS, Outcome};

pub(crate) const COMMAND: &str = "scheduler";

/// Port 0 is any that is free. An executor that does not poll for the time-out is taken for dead.
pub(crate) async fn run(port: u16, executor_timeout_seconds: u64) -> Outcome<()> {
    ends_with_the_driver()?;
    // Ballista does not ask for TCP_NODELAY, and each poll then takes 40 ms more. On Linux, sockets that are accepted
    // have it from the one that listens.
    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(([127, 0, 0, 1], port).into())?;
    let listener = socket.listen(1024)?;
    let port = listener.local_addr()?.port();
    let config = Arc::new(SchedulerConfig {
        bind_port: port,
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        executor_timeout_seconds,
        expire_dead_executor_interval_seconds: 1,
        no_executors_grace_period_seconds: 30,
        executor_termination_grace_period: 0,
        min_ready_executors: EXECUTORS,
        override_physical_codec: Some(Arc::new(GateCodec::default())),
        override_config_producer: Some(Arc::new(SessionConfig::new_with_ballista)),
        ..Default::default()
    });
    let cluster = BallistaCluster::new_from_config(&config).await?;
    let server = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, config).await?;
    says_listening(port);
    Ok(start_grpc_service_with_listener(listener, server).await?)
}
