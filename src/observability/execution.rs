//! One execution of a plan, for looking at it while it runs and after.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

use super::callback::{ConsumerWaits, ExecutionCallback};
use super::iterators::{ObservedIterator, ObservedIterators};
use crate::physical::{PlanExt, WriteExec, ran_below};
use crate::runtime::Scheduler;
use crate::sinks::WrittenFile;
use crate::store::{BlockStore, Owner};

/// Written files that are remembered.
const KEPT_WRITES: usize = 10_000;

/// Those who hear of the executions of a session, and those executions that run now.
#[derive(Debug, Default)]
pub(crate) struct Observers {
    pub(super) callbacks: Vec<Arc<dyn ExecutionCallback>>,
    pub(super) running: Mutex<BTreeMap<u64, Execution>>,
    pub(super) iterators: ObservedIterators,
    writes: Mutex<VecDeque<(u64, WrittenFile)>>,
}

impl Observers {
    /// Calls `callbacks` in turn.
    pub(crate) fn new(callbacks: Vec<Arc<dyn ExecutionCallback>>) -> Self {
        Self { callbacks, ..Self::default() }
    }

    /// A name for an iterator of such a kind.
    pub(crate) fn name_of_iterator(&self, kind: &str) -> String {
        self.iterators.name(kind)
    }

    /// Shows an iterator until it is dropped.
    pub(crate) fn add_iterator(&self, iterator: &Arc<dyn ObservedIterator>) {
        self.iterators.add(iterator);
    }

    /// Says that a consumer has waited for long.
    pub(crate) fn consumer_waits(&self, event: &ConsumerWaits) {
        self.callbacks.iter().for_each(|callback| callback.on_consumer_waits(event));
    }

    /// Keeps which files a query has written, the last ones of all queries.
    pub(super) fn note_writes(&self, query: u64, files: Vec<WrittenFile>) {
        let mut writes = self.writes.lock();
        writes.extend(files.into_iter().map(|file| (query, file)));
        let over = writes.len().saturating_sub(KEPT_WRITES);
        writes.drain(..over);
    }

    /// The files that queries have written, and the number of the query.
    pub(super) fn writes(&self) -> Vec<(u64, WrittenFile)> {
        self.writes.lock().iter().cloned().collect()
    }

    /// The executions that run now.
    pub(super) fn running(&self) -> Vec<Execution> {
        self.running.lock().values().cloned().collect()
    }
}

/// A plan that runs or has run. Clones look at the same execution.
#[derive(Debug, Clone)]
pub(crate) struct Execution {
    pub(super) query: u64,
    pub(super) plan: Arc<dyn ExecutionPlan>,
    store: Arc<BlockStore>,
    pub(super) started: Instant,
    pub(super) ended: Arc<OnceLock<Duration>>,
    threads: usize,
    pub(super) observers: Arc<Observers>,
    scheduler: Option<Arc<Scheduler>>,
    spilled_before: usize,
    restored_before: usize,
    result_owner: Arc<Owner>,
    /// Nanoseconds in which rows were there and nobody took them.
    pub(super) untaken: Arc<AtomicU64>,
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

    /// The files that it has written, in the order of their rows.
    pub(crate) fn written_files(&self) -> Vec<WrittenFile> {
        fn add(plan: &Arc<dyn ExecutionPlan>, files: &mut Vec<WrittenFile>) {
            if let Some(write) = plan.operator::<WriteExec>() {
                files.extend(write.files());
            }
            ran_below(plan.as_ref()).iter().for_each(|(_, input)| add(input, files));
        }
        let mut files = Vec::new();
        add(&self.plan, &mut files);
        files
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
}
