//! An executor's process.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_core::BALLISTA_PROTOCOL_VERSION;
use ballista_core::extension::SessionConfigExt;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{ExecutorRegistration, PollWorkParams};
use ballista_core::serde::scheduler::{ExecutorOperatingSystemSpecification, ExecutorSpecification};
use ballista_core::serde::{BallistaCodec, BallistaLogicalExtensionCodec};
use ballista_core::utils::{GrpcClientConfig, GrpcServerConfig, create_grpc_client_endpoint, create_grpc_server};
use ballista_executor::execution_engine::{DefaultExecutionEngine, ExecutionEngine};
use ballista_executor::execution_loop::poll_loop;
use ballista_executor::executor::Executor;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::health::ExecutorHealth;
use ballista_executor::metrics::LoggingMetricsCollector;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Channel;

use crate::Outcome;
use crate::child::{ends_with_the_driver, says_listening};
use crate::engine::NoShuffleEngine;
use crate::gate_exec::GateCodec;

pub(crate) const COMMAND: &str = "executor";
/// A task at a time.
const VCORES: u32 = 1;
/// How often an executor polls beside its loop.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// With `shuffles` it has Ballista's engine, and a server for what that writes. Without, it has `NoShuffleEngine`.
pub(crate) async fn run(id: &str, scheduler_port: u16, work_dir: &str, shuffles: bool) -> Outcome<()> {
    ends_with_the_driver()?;
    let listener = if shuffles { Some(TcpListener::bind("127.0.0.1:0").await?) } else { None };
    let port = listener.as_ref().map(TcpListener::local_addr).transpose()?.map_or(0, |address| address.port());
    let registration = registration(id, port);
    let url = format!("http://127.0.0.1:{scheduler_port}");
    let endpoint = create_grpc_client_endpoint(url, Some(&GrpcClientConfig::default()))?;
    let scheduler = SchedulerGrpcClient::new(endpoint.connect().await?);
    let executor = Arc::new(executor(registration.clone(), work_dir, shuffles));
    let codec: BallistaCodec<LogicalPlanNode, PhysicalPlanNode> =
        BallistaCodec::new(Arc::new(BallistaLogicalExtensionCodec::default()), Arc::new(GateCodec::default()));
    says_listening(port);
    let polls = poll_loop(scheduler.clone(), executor, codec, None, None, ExecutorHealth::new());
    tokio::select! {
        end = polls => Ok(end?),
        end = serve(listener, work_dir.to_owned()) => end,
        () = heartbeats(scheduler, registration) => Ok(()),
    }
}

fn registration(id: &str, port: u16) -> ExecutorRegistration {
    ExecutorRegistration {
        id: id.to_owned(),
        host: Some("127.0.0.1".to_owned()),
        port: port.into(),
        // When executors poll, nobody listens to what the scheduler calls: to cancel a task, to stop.
        grpc_port: 0,
        specification: Some(ExecutorSpecification::default().with_vcores(VCORES).into()),
        os_info: Some(ExecutorOperatingSystemSpecification::default().into()),
        ballista_protocol_version: BALLISTA_PROTOCOL_VERSION,
    }
}

fn executor(registration: ExecutorRegistration, work_dir: &str, shuffles: bool) -> Executor {
    let engine: Arc<dyn ExecutionEngine> =
        if shuffles { Arc::new(DefaultExecutionEngine::new()) } else { Arc::new(NoShuffleEngine) };
    let runtime = Arc::new(RuntimeEnv::default());
    Executor::new(
        registration,
        work_dir,
        Arc::new(move |_| Ok(Arc::clone(&runtime))),
        Arc::new(SessionConfig::new_with_ballista),
        Arc::new(BallistaFunctionRegistry::default()),
        Arc::new(LoggingMetricsCollector::default()),
        VCORES as usize,
        engine,
    )
}

/// Other executors and the client fetch what tasks have written.
async fn serve(listener: Option<TcpListener>, work_dir: String) -> Outcome<()> {
    let Some(listener) = listener else { return std::future::pending().await };
    let service = FlightServiceServer::new(BallistaFlightService::new(work_dir));
    let server = create_grpc_server(&GrpcServerConfig::default()).add_service(service);
    Ok(server.serve_with_incoming(TcpListenerStream::new(listener)).await?)
}

/// Polls that take no task and report none. While a task runs, the loop polls each 5 s only, which is as long as the
/// scheduler waits here until it takes an executor for dead, and as long as a new scheduler would not know it. So they
/// are sent in all scenarios. (`heart_beat_from_executor` does not register an executor with a scheduler that does not
/// know it, since the scheduler then calls back.) Which jobs to clean up, an answer may say too, and is not heard: the
/// driver removes everything.
async fn heartbeats(mut scheduler: SchedulerGrpcClient<Channel>, registration: ExecutorRegistration) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        let metadata = Some(registration.clone());
        let poll = PollWorkParams { metadata, num_free_vcores: 0, task_status: Vec::new() };
        if let Err(status) = scheduler.poll_work(poll).await {
            log::warn!("heartbeat failed: {status}");
        }
    }
}
