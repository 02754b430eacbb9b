//! Concurrent drivers of the partitions of a plan.

use std::future::Future;

use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use tokio::runtime::Handle;

use crate::error::panic_text;

/// Futures that run at once on the session's threads. Dropping this cancels them.
#[derive(Debug)]
pub(crate) struct Drivers<T>(JoinSet<Result<T>>);

impl<T: Send + 'static> Drivers<T> {
    /// None yet.
    pub(crate) fn none() -> Self {
        Self(JoinSet::new())
    }

    /// What a future gives that runs on other threads than those of the session. Dropping this cancels it.
    pub(crate) async fn on(threads: &Handle, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let mut drivers = Self::none();
        drivers.spawn_on(threads, future);
        match drivers.next().await {
            Some(result) => result,
            None => internal_err!("a driver vanished"),
        }
    }

    pub(crate) fn start<F>(futures: impl IntoIterator<Item = F>) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut drivers = Self::none();
        for future in futures {
            drivers.spawn(future);
        }
        drivers
    }

    /// Starts one more.
    pub(crate) fn spawn(&mut self, future: impl Future<Output = Result<T>> + Send + 'static) {
        self.0.spawn(future);
    }

    /// Starts one more, on other threads than those of the session.
    pub(crate) fn spawn_on(&mut self, threads: &Handle, future: impl Future<Output = Result<T>> + Send + 'static) {
        self.0.spawn_on(future, threads);
    }

    /// Drivers whose results were not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all have ended, and their results were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The result of the next driver that ends; `None` when all have. A panic is an error.
    pub(crate) async fn next(&mut self) -> Option<Result<T>> {
        let joined = self.0.join_next().await?;
        Some(joined.unwrap_or_else(|e| match e.try_into_panic() {
            Ok(payload) => Err(exec_datafusion_err!("a task panicked: {}", panic_text(payload.as_ref()))),
            Err(_) => Err(exec_datafusion_err!("a task was cancelled")),
        }))
    }

    /// The results of all drivers; on the first error the others are cancelled.
    pub(crate) async fn finish(mut self) -> Result<Vec<T>> {
        let mut results = Vec::new();
        while let Some(result) = self.next().await {
            results.push(result?);
        }
        Ok(results)
    }
}
