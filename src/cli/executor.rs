//! `blockyard cluster executor`: a process that runs stages of the queries of others.

use super::arguments::Executor;
use super::failure::Failure;
use super::session::Session;
use crate::{ExecutorOptions, ExecutorServer};

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
    let options = ExecutorOptions { listen: arguments.listen.clone(), token, insecure: arguments.insecure };
    session.listening(async |session| {
        let context = session.context().clone();
        let server = session.on_workers(async move { ExecutorServer::bind(&context, options).await }).await;
        let server = server.map_err(|failure| Failure::Usage(failure.to_string()))?;
        println!("listening on {}", server.address());
        std::future::pending().await
    })
}
