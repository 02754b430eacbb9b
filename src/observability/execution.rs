//! One execution of a plan, for looking at it while it runs and after.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::physical_plan::ExecutionPlan;

use super::report::{report, status};
use crate::store::{BlockStore, Owner};

/// A plan that runs or has run. Clones look at the same execution.
#[derive(Debug, Clone)]
pub(crate) struct Execution {
    query: u64,
    plan: Arc<dyn ExecutionPlan>,
    store: Arc<BlockStore>,
    started: Instant,
    spilled_before: usize,
    restored_before: usize,
    result_owner: Arc<Owner>,
}

impl Execution {
    /// Starts to observe a plan that is about to run.
    pub(crate) fn start(plan: Arc<dyn ExecutionPlan>, store: Arc<BlockStore>) -> Self {
        if store.num_queries() == 0 {
            store.budget().reset_peak();
        }
        Self {
            query: store.next_query(),
            plan,
            started: Instant::now(),
            spilled_before: store.totals().spilled_bytes(),
            restored_before: store.totals().restored_bytes(),
            store,
            result_owner: Arc::default(),
        }
    }

    /// Number of the query in its session.
    pub(crate) fn query(&self) -> u64 {
        self.query
    }

    /// The plan, with its metrics.
    pub(crate) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// Where blocks of the result are counted.
    pub(crate) fn result_owner(&self) -> &Arc<Owner> {
        &self.result_owner
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Bytes of blocks that the session spilled since the start.
    pub(crate) fn spilled_bytes(&self) -> usize {
        self.store.totals().spilled_bytes() - self.spilled_before
    }

    /// Bytes of blocks that the session restored since the start.
    pub(crate) fn restored_bytes(&self) -> usize {
        self.store.totals().restored_bytes() - self.restored_before
    }

    /// Most bytes of memory that the session's blocks and operators held at once since the start, or since the
    /// start of the first of the queries that run at once.
    pub(crate) fn peak_bytes(&self) -> usize {
        self.store.budget().peak()
    }

    /// Bytes of memory that the session's blocks and operators hold now.
    pub(crate) fn used_bytes(&self) -> usize {
        self.store.budget().used()
    }

    /// The limit of the session's memory.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.store.budget().limit()
    }

    /// Tasks that ended, rows that came out of the last stage, and memory.
    pub(crate) fn status(&self) -> String {
        status(self)
    }

    /// The stats report.
    pub(crate) fn report(&self) -> String {
        report(self)
    }
}
