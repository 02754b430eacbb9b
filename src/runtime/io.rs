//! Waiting for IO in code that cannot be async, such as SQL planning.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
#[cfg(feature = "cli")]
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use futures::FutureExt;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::sync::oneshot;

use super::UnderWay;
use crate::error::panic_text;

/// Runs a future on a runtime of its own and waits for it. Listings and footers are read this way while a statement is
/// planned; it works from inside and outside any other runtime. The runtime lives as long as the process, so that
/// connections opened by an object store stay usable.
pub(crate) fn block_on_io<T: Send + 'static>(future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    static IO: OnceLock<Option<Runtime>> = OnceLock::new();
    let runtime = started(&IO, "blockyard-io", 1)?;
    let (send, receive) = channel();
    runtime.spawn(async move {
        let result = AssertUnwindSafe(future).catch_unwind().await;
        let result =
            result.unwrap_or_else(|p| Err(exec_datafusion_err!("a reader panicked: {}", panic_text(p.as_ref()))));
        // The receiver waits below, so nobody can have gone.
        let _sent = send.send(result);
    });
    receive.recv().map_err(|_| exec_datafusion_err!("planning panicked while it waited for IO"))?
}

/// Threads that make requests to object stores, which nothing else holds up, for as long as the process lives.
///
/// # Errors
///
/// Where they cannot be started.
#[cfg(feature = "cloud")]
pub(crate) fn requests_runtime() -> Result<&'static Handle> {
    static REQUESTS: OnceLock<Option<Runtime>> = OnceLock::new();
    started(&REQUESTS, "blockyard-requests", 2)
}

/// A thread that talks to other processes, and to which no task holds up a word, for as long as the process lives.
///
/// # Errors
///
/// Where it cannot be started.
pub(crate) fn talking_runtime() -> Result<&'static Handle> {
    static TALKS: OnceLock<Option<Runtime>> = OnceLock::new();
    started(&TALKS, "blockyard-talks", 1)
}

/// The threads of a runtime, which are started when they are needed first.
fn started(runtime: &'static OnceLock<Option<Runtime>>, name: &str, threads: usize) -> Result<&'static Handle> {
    let start = || Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build().ok();
    match runtime.get_or_init(start) {
        Some(runtime) => Ok(runtime.handle()),
        None => exec_err!("cannot start the threads {name}"),
    }
}

/// Something that runs on other threads until this drops.
#[cfg(feature = "cloud")]
#[derive(Debug)]
pub(crate) struct OnHandle(tokio::task::JoinHandle<()>);

#[cfg(feature = "cloud")]
impl OnHandle {
    /// Begins it on the threads of `handle`.
    pub(crate) fn spawn(handle: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(handle.spawn(work))
    }
}

#[cfg(feature = "cloud")]
impl Drop for OnHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs blocking IO on a thread for that, without holding up the session's threads. Dropping the future does not stop
/// it.
pub(crate) async fn on_io_thread<T: Send + 'static>(io: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    begun_on_io_thread(io).await
}

/// The same, begun at once instead of when the future is waited for.
pub(crate) fn begun_on_io_thread<T: Send + 'static>(
    io: impl FnOnce() -> Result<T> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let begun = SpawnedTask::spawn_blocking(|| {
        let _under_way = UnderWay::begin();
        io()
    });
    async move { begun.join().await.unwrap_or_else(|e| Err(exec_datafusion_err!("an IO thread ended: {e}"))) }
}

/// Runs a future on a thread of its own, which it may hold up as it likes. The threads of [`on_io_thread`] are not for
/// that: there are only so many, and what runs here waits for them. Dropping the result does not stop it.
pub(crate) async fn on_own_thread<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let runtime = Handle::current();
    let (send, receive) = oneshot::channel();
    in_thread("blockyard-task", move || {
        let result = runtime.block_on(UnderWay::while_polled(AssertUnwindSafe(future).catch_unwind()));
        // Nobody waits for a task of a query that has ended.
        let _sent = send.send(result);
    })?;
    match receive.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(exec_datafusion_err!("a task panicked: {}", panic_text(panic.as_ref()))),
        Err(_) => Err(exec_datafusion_err!("the thread of a task ended")),
    }
}

/// What has begun and must not stay half done.
static BEGUN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Runs a future to its end once it has begun, also if nobody waits for it any more: what would be left half done
/// otherwise. A process that ends waits for it with [`await_begun`].
pub(crate) async fn to_its_end<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    struct Begun;
    impl Drop for Begun {
        fn drop(&mut self) {
            *BEGUN.0.lock() -= 1;
            BEGUN.1.notify_all();
        }
    }
    *BEGUN.0.lock() += 1;
    let begun = Begun;
    on_own_thread(async move {
        let _begun = begun;
        future.await
    })
    .await
}

/// Waits until nothing has begun that must not stay half done, for so long at most.
#[cfg(feature = "cli")]
pub(crate) fn await_begun(most: Duration) {
    let mut begun = BEGUN.0.lock();
    let _waited = BEGUN.1.wait_while_for(&mut begun, |begun| *begun > 0, most);
}

/// Calls what may hold up its thread for long. Where the thread is one on which other things of the session wait, they
/// move to another first.
pub(crate) fn holding_up<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Runs `work` on a thread of its own until it returns.
pub(crate) fn in_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    // Nobody waits for it: it ends by itself.
    let _thread = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_begun_ends_though_nobody_waits() {
        let (begun, has_begun) = oneshot::channel();
        let (go_on, may_go_on) = oneshot::channel::<()>();
        let (ended, has_ended) = oneshot::channel();
        let work = to_its_end(async move {
            let _told = begun.send(());
            let _allowed = may_go_on.await;
            let _told = ended.send(());
            Ok(())
        });
        let mut work = Box::pin(work);
        tokio::select! {
            _ = &mut work => unreachable!("it waits"),
            told = has_begun => told.unwrap(),
        }
        drop(work);
        go_on.send(()).unwrap();
        has_ended.await.unwrap();
    }
}
