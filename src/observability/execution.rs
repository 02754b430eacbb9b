//! One execution of a plan, for looking at it while it runs and after.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use parking_lot::Mutex;

use super::callback::{ExecutionCallback, ExecutionFailed, ExecutionProgress, ExecutionStarted, ExecutionSucceeded};
use super::progress::progress;
use super::report::{failures, finished_tasks, report, status};
use crate::runtime::Scheduler;
use crate::store::{BlockStore, Owner};

/// Those who hear of the executions of a session, and those executions that run now.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    callbacks: Vec<Arc<dyn ExecutionCallback>>,
    running: Mutex<BTreeMap<u64, Execution>>,
}

impl Observers {
    /// Calls `callbacks` in turn.
    pub(crate) fn new(callbacks: Vec<Arc<dyn ExecutionCallback>>) -> Self {
        Self { callbacks, running: Mutex::default() }
    }

    /// The executions that run now.
    pub(super) fn running(&self) -> Vec<Execution> {
        self.running.lock().values().cloned().collect()
    }
}

/// A plan that runs or has run. Clones look at the same execution.
#[derive(Debug, Clone)]
pub(crate) struct Execution {
    query: u64,
    plan: Arc<dyn ExecutionPlan>,
    store: Arc<BlockStore>,
    started: Instant,
    ended: Arc<OnceLock<Duration>>,
    threads: usize,
    observers: Arc<Observers>,
    scheduler: Option<Arc<Scheduler>>,
    spilled_before: usize,
    restored_before: usize,
    result_owner: Arc<Owner>,
    /// Nanoseconds in which rows were there and nobody took them.
    untaken: Arc<AtomicU64>,
    before: Option<Duration>,
}

impl Execution {
    /// Starts to observe a plan that is about to run: the second one, where another ran for `before` and failed.
    pub(crate) fn start(
        plan: Arc<dyn ExecutionPlan>,
        store: Arc<BlockStore>,
        context: &TaskContext,
        before: Option<Duration>,
    ) -> Self {
        if store.num_queries() == 0 {
            store.budget().reset_peak();
        }
        Self {
            query: store.next_query(),
            ended: Arc::default(),
            threads: context.session_config().target_partitions(),
            scheduler: context.session_config().get_extension::<Scheduler>(),
            observers: context.session_config().get_extension::<Observers>().unwrap_or_default(),
            plan,
            started: Instant::now(),
            spilled_before: store.totals().spilled_bytes(),
            restored_before: store.totals().restored_bytes(),
            store,
            result_owner: Arc::default(),
            untaken: Arc::default(),
            before,
        }
    }

    /// Watches what the execution hands out until the result drops. Fails when a callback does not want it to start.
    pub(crate) fn watch(&self) -> Result<Watch> {
        self.observers.running.lock().insert(self.query, self.clone());
        let mut watch = Watch { execution: self.clone(), rows: 0, given: None, told: None, ended: None };
        if !self.observers.callbacks.is_empty() {
            let plan = displayable(self.plan.as_ref()).indent(false).to_string();
            let event = ExecutionStarted { query: self.query, plan };
            for callback in &self.observers.callbacks {
                let wanted = callback.before_execution(&event);
                watch.ended_if_failed(&wanted);
                wanted?;
            }
        }
        Ok(watch)
    }

    /// How long another plan for the same ran, which failed since a join did not fit.
    pub(crate) fn before(&self) -> Option<Duration> {
        self.before
    }

    /// Threads that run it.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Number of the query in its session.
    pub(crate) fn query(&self) -> u64 {
        self.query
    }

    /// The scheduler of its session.
    pub(super) fn scheduler(&self) -> Option<&Arc<Scheduler>> {
        self.scheduler.as_ref()
    }

    /// The lines of a progress display.
    pub(crate) fn progress(&self) -> Vec<String> {
        progress(self)
    }

    /// The plan, with its metrics.
    pub(crate) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// Where blocks of the result are counted.
    pub(crate) fn result_owner(&self) -> &Arc<Owner> {
        &self.result_owner
    }

    /// Time from the start to the end, or to now.
    pub(crate) fn elapsed(&self) -> Duration {
        self.ended.get().copied().unwrap_or_else(|| self.started.elapsed())
    }

    /// Time in which rows were there and nobody took them.
    pub(crate) fn untaken(&self) -> Duration {
        Duration::from_nanos(self.untaken.load(Relaxed))
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

    /// What it has put up with, a line for each stage.
    pub(crate) fn failures(&self) -> Option<String> {
        failures(self)
    }

    /// The stats report.
    pub(crate) fn report(&self) -> String {
        report(self)
    }
}

/// How often callbacks hear of progress at most.
const OFTEN: Duration = Duration::from_millis(100);

/// Somebody takes what an execution hands out. The execution has ended when this drops.
#[derive(Debug)]
pub(crate) struct Watch {
    execution: Execution,
    rows: usize,
    /// When rows were handed out, while nobody asks for more.
    given: Option<Instant>,
    told: Option<Instant>,
    ended: Option<std::result::Result<(), String>>,
}

impl Watch {
    /// More rows are asked for.
    pub(crate) fn asked(&mut self) {
        if let Some(given) = self.given.take() {
            self.execution.untaken.fetch_add(given.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Rows were handed out.
    pub(crate) fn rows(&mut self, rows: usize) {
        self.rows += rows;
        self.given = Some(Instant::now());
        let callbacks = &self.execution.observers.callbacks;
        if callbacks.is_empty() || self.told.is_some_and(|told| told.elapsed() < OFTEN) {
            return;
        }
        self.told = Some(Instant::now());
        let event = ExecutionProgress {
            query: self.execution.query,
            elapsed: self.execution.elapsed(),
            rows: self.rows,
            tasks: finished_tasks(&self.execution),
        };
        callbacks.iter().for_each(|callback| callback.on_progress(&event));
    }

    /// There will be no rows if something has failed.
    pub(crate) fn ended_if_failed<T>(&mut self, result: &Result<T>) {
        if let Err(e) = result {
            self.ended(Err(e.to_string()));
        }
    }

    /// There are no more rows.
    pub(crate) fn ended(&mut self, result: std::result::Result<(), String>) {
        self.ended.get_or_insert(result);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (execution, rows) = (&self.execution, self.rows);
        let (query, elapsed) = (execution.query, execution.started.elapsed());
        // Set once: each execution is watched once.
        let _first = execution.ended.set(elapsed);
        let observers = &execution.observers;
        observers.running.lock().remove(&query);
        if observers.callbacks.is_empty() {
            return;
        }
        match self.ended.take().unwrap_or_else(|| Err("it was dropped before its end".to_owned())) {
            Ok(()) => {
                let event = ExecutionSucceeded { query, elapsed, rows, stats: execution.report() };
                observers.callbacks.iter().for_each(|callback| callback.after_success(&event));
            }
            Err(error) => {
                let event = ExecutionFailed { query, elapsed, rows, error };
                observers.callbacks.iter().for_each(|callback| callback.after_failure(&event));
            }
        }
    }
}
