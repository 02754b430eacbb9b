//! `blockyard cluster`: a process that runs stages of the queries of others, and how such processes are.

use datafusion::common::exec_datafusion_err;

use super::arguments::Executor;
use super::failure::Failure;
use super::session::Session;
use crate::error::one_message;
use crate::{ExecutorOptions, ExecutorServer, executor_statuses};

/// Runs stages until the process is asked to end.
pub(super) fn run(session: &mut Session, arguments: &Executor) -> Result<(), Failure> {
    let token = match &arguments.token_file {
        None => None,
        Some(file) => {
            let read = std::fs::read_to_string(file);
            let text =
                read.map_err(|e| Failure::Usage(format!("cannot read the token of '{}': {e}", file.display())))?;
            Some(text.trim().to_owned())
        }
    };
    let Executor { listen, insecure, tls_cert, tls_key, tls_ca, .. } = arguments.clone();
    let options = ExecutorOptions { listen, token, insecure, tls_cert, tls_key, tls_ca };
    session.listening(async |session| {
        let context = session.context().clone();
        let server = session.on_workers(async move { ExecutorServer::bind(&context, options).await }).await;
        let server = server.map_err(|failure| Failure::Usage(failure.to_string()))?;
        println!("listening on {}", server.address());
        std::future::pending().await
    })
}

/// Prints how the executors of the session are. Fails where one says nothing.
pub(super) fn status(session: &mut Session) -> Result<(), Failure> {
    session.listening(async |session| {
        let context = session.context().clone();
        let statuses = session.on_workers(async move { executor_statuses(&context).await }).await;
        let statuses = statuses.map_err(|failure| Failure::Usage(failure.to_string()))?;
        let mut silent = 0;
        for (address, status) in statuses {
            let mut line = match status {
                Ok(status) => serde_json::to_value(status).unwrap_or_default(),
                Err(e) => {
                    silent += 1;
                    serde_json::json!({"error": one_message(&e)})
                }
            };
            line["address"] = address.into();
            println!("{line}");
        }
        match silent {
            0 => Ok(()),
            1 => Err(Failure::Statement(exec_datafusion_err!("1 executor says nothing"))),
            silent => Err(Failure::Statement(exec_datafusion_err!("{silent} executors say nothing"))),
        }
    })
}
