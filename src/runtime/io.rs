//! Waiting for IO in code that cannot be async, such as SQL planning.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err};
use futures::FutureExt;
use tokio::runtime::{Builder, Runtime};

use crate::error::panic_text;

/// Runs a future on a runtime of its own and waits for it. Listings and footers are read this way while a statement is
/// planned; it works from inside and outside any other runtime. The runtime lives as long as the process, so that
/// connections opened by an object store stay usable.
pub(crate) fn block_on_io<T: Send + 'static>(future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    static IO: OnceLock<Option<Runtime>> = OnceLock::new();
    let runtime = IO
        .get_or_init(|| {
            Builder::new_multi_thread().worker_threads(1).thread_name("blockyard-io").enable_all().build().ok()
        })
        .as_ref()
        .ok_or_else(|| exec_datafusion_err!("cannot start a thread for IO"))?;
    let (send, receive) = channel();
    #[expect(clippy::disallowed_methods, reason = "this is the runtime")]
    runtime.spawn(async move {
        let result = AssertUnwindSafe(future).catch_unwind().await;
        let result =
            result.unwrap_or_else(|p| Err(exec_datafusion_err!("a reader panicked: {}", panic_text(p.as_ref()))));
        // The receiver waits below, so nobody can have gone.
        let _sent = send.send(result);
    });
    receive.recv().map_err(|_| exec_datafusion_err!("planning panicked while it waited for IO"))?
}

/// Runs blocking IO on a thread for that, without holding up the session's threads. Dropping the future does not stop it.
pub(crate) async fn on_io_thread<T: Send + 'static>(io: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let joined = SpawnedTask::spawn_blocking(io).join().await;
    joined.unwrap_or_else(|e| Err(exec_datafusion_err!("an IO thread ended: {e}")))
}

/// Runs `work` on a thread of its own until it returns.
pub(crate) fn in_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    // Nobody waits for it: it ends by itself.
    let _thread = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(())
}
