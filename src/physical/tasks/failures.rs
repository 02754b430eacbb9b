//! Failures of functions and reads that a query tolerates: retries, rows that are left out, tasks that are given up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use datafusion::common::DataFusionError;
use datafusion::execution::TaskContext;
use parking_lot::Mutex;

use crate::config::BlockyardOptions;
use crate::error::{one_message, spill_error};
use crate::runtime::{UnderWay, backoff};
use crate::store::QueryPool;

/// What went wrong in a stage without ending the query.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    failed_rows: AtomicUsize,
    errored_tasks: AtomicUsize,
    retries: AtomicUsize,
    /// Whether more rows have failed than may.
    over_budget: AtomicBool,
    first: Mutex<Option<String>>,
}

impl FailureLog {
    fn note(&self, counter: &AtomicUsize, error: &DataFusionError) {
        counter.fetch_add(1, Relaxed);
        let lines = || one_message(error).lines().map(str::trim).collect::<Vec<_>>().join(" ");
        self.first.lock().get_or_insert_with(lines);
    }

    /// A row was left out or has become nulls.
    pub(crate) fn row_failed(&self, error: &DataFusionError) {
        self.note(&self.failed_rows, error);
    }

    /// More rows have failed than may: no task may give up any more.
    pub(crate) fn is_over_budget(&self) {
        self.over_budget.store(true, Relaxed);
    }

    /// Something was tried again.
    pub(crate) fn retried(&self, error: &DataFusionError) {
        self.note(&self.retries, error);
    }

    /// Rows for which a function failed.
    pub(crate) fn failed_rows(&self) -> usize {
        self.failed_rows.load(Relaxed)
    }

    /// Tasks that gave up.
    pub(crate) fn errored_tasks(&self) -> usize {
        self.errored_tasks.load(Relaxed)
    }

    /// Calls and reads that were tried again.
    pub(crate) fn retries(&self) -> usize {
        self.retries.load(Relaxed)
    }

    /// The first error of all of them.
    pub(crate) fn first(&self) -> Option<String> {
        self.first.lock().clone()
    }

    /// Whether a task that failed may give up, by the number of those in its query that have before.
    pub(crate) fn may_give_up(&self, error: &DataFusionError, context: &TaskContext) -> bool {
        let most = BlockyardOptions::from_task(context).max_errored_blocks;
        let counted = || QueryPool::errored_blocks_of(context).map_or(usize::MAX, |n| n.fetch_add(1, Relaxed));
        let tolerated = is_of_data(error)
            && !self.over_budget.load(Relaxed)
            && most.0 != Some(0)
            && most.0.is_none_or(|most| counted() < most);
        if tolerated {
            self.note(&self.errored_tasks, error);
        }
        tolerated
    }
}

/// Whether an error comes from the data or from a function, rather than from a lack of memory or disk.
pub(crate) fn is_of_data(error: &DataFusionError) -> bool {
    !matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) && spill_error(error).is_none()
}

/// What the client of an object store says of a request that it has made again.
const TRIED_BY_CLIENT: &str = "max_retries: ";

/// Which errors are worth another try, and how many.
#[derive(Debug, Clone)]
pub(crate) struct Retries {
    patterns: Vec<String>,
    most: usize,
}

impl Retries {
    /// For functions, as the options say.
    pub(crate) fn of_maps(options: &BlockyardOptions) -> Self {
        Self::new(&options.retried_map_errors, options.max_map_retries)
    }

    /// For reads and writes, as the options say.
    pub(crate) fn of_io(options: &BlockyardOptions) -> Self {
        Self::new(&options.retried_io_errors, options.max_io_retries)
    }

    fn new(patterns: &str, most: usize) -> Self {
        let patterns = patterns.split(',').map(|p| p.trim().to_lowercase()).filter(|p| !p.is_empty());
        Self { patterns: patterns.collect(), most }
    }

    /// Whether anything is tried again.
    pub(crate) fn any(&self) -> bool {
        self.most > 0 && !self.patterns.is_empty()
    }

    /// Whether to try again after an error, the `attempt`-th try having failed; the first is 0.
    pub(crate) fn again(&self, error: &DataFusionError, attempt: usize) -> bool {
        if attempt >= self.most || !self.any() || !is_of_data(error) {
            return false;
        }
        let text = error.to_string().to_lowercase();
        // The client of an object store has asked as often as it may.
        if text.contains(TRIED_BY_CLIENT) {
            return false;
        }
        self.patterns.iter().any(|pattern| pattern == "*" || text.contains(pattern))
    }
}

/// Waits before the next try of a read or a write.
pub(crate) async fn pause(attempt: usize, salt: u64) {
    let time = backoff(attempt, Duration::from_millis(100), Duration::from_secs(32), salt);
    UnderWay::during(tokio::time::sleep(time)).await;
}

/// Rows that the steps of a stage have seen and failed for, in one execution.
#[derive(Debug, Default)]
pub(crate) struct StageRows(Mutex<BTreeMap<usize, Arc<StepRows>>>);

#[derive(Debug, Default)]
pub(crate) struct StepRows {
    pub(crate) seen: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl StageRows {
    /// Those of the `step`-th step.
    pub(crate) fn of_step(&self, step: usize) -> Arc<StepRows> {
        Arc::clone(self.0.lock().entry(step).or_default())
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::{exec_datafusion_err, resources_datafusion_err};

    use super::*;

    #[test]
    fn only_what_the_patterns_name_is_tried_again() {
        let retries = Retries::new("Connection reset, 503", 2);
        let reset = exec_datafusion_err!("generic error: connection RESET by peer");
        assert!(retries.again(&reset, 0) && retries.again(&reset, 1) && !retries.again(&reset, 2));
        assert!(!retries.again(&exec_datafusion_err!("no such file"), 0));
        let tried = exec_datafusion_err!("in 4s, after 10 retries, max_retries: 10 - status code: 503");
        assert!(!retries.again(&tried, 0), "each failure is tried again in one place");
        let all = Retries::new("*", 1);
        assert!(all.again(&exec_datafusion_err!("no such file"), 0));
        assert!(!all.again(&resources_datafusion_err!("memory"), 0), "memory does not come back by asking again");
        assert!(!Retries::new("", 5).again(&reset, 0));
    }
}
