//! Queries that run at once: each has the memory that it was planned for, or waits until it can have it.
//!
//! A query enters when what was promised to those that run, and what they have, leaves room for what it asks. From then
//! on the others do not grow into what it has not taken yet. The wait ends too when nothing moves: those who hold
//! memory may be waiting for the one that waits, as a function that runs a query of its own does.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use datafusion::common::{Result, exec_err};
use parking_lot::{Condvar, Mutex};

use super::owner::Owners;
use crate::store::Budget;

/// A query that asks for at most this part of the limit enters at once: it is no burden, and may be what looks after
/// the others.
const LIGHT_PART: usize = 64;
/// How often those that wait look whether there is room.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Memory that nobody takes or gives back for so long is not waited for.
const STALL: Duration = Duration::from_secs(1);

/// The queries of a session that run, and those that wait.
#[derive(Debug)]
pub(crate) struct Admissions {
    budget: Arc<Budget>,
    owners: Arc<Owners>,
    queries: Mutex<Queries>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queries {
    running: Vec<AdmittedQuery>,
    /// Numbers in the order in which they came.
    waiting: VecDeque<u64>,
}

/// A query that runs.
#[derive(Debug, Clone)]
pub(crate) struct AdmittedQuery {
    pub(crate) query: u64,
    /// Bytes that were promised to it.
    pub(crate) promised: usize,
    /// Bytes that its operators have.
    operators: Arc<AtomicUsize>,
}

impl AdmittedQuery {
    /// Bytes that its operators have.
    pub(crate) fn operators(&self) -> usize {
        self.operators.load(Relaxed)
    }
}

impl Admissions {
    pub(crate) fn new(budget: Arc<Budget>, owners: Arc<Owners>) -> Self {
        Self { budget, owners, queries: Mutex::default(), changed: Condvar::new() }
    }

    /// How many queries run or wait.
    pub(crate) fn count(&self) -> usize {
        let queries = self.queries.lock();
        queries.running.len() + queries.waiting.len()
    }

    /// The queries that run.
    pub(crate) fn running(&self) -> Vec<AdmittedQuery> {
        self.queries.lock().running.clone()
    }

    /// Enters a query that asks for `bytes`, or gives it a place among those that wait.
    pub(crate) fn enter(self: &Arc<Self>, query: u64, bytes: usize) -> Entry {
        let mut queries = self.queries.lock();
        let light = bytes <= self.budget.limit() / LIGHT_PART;
        if light || (queries.waiting.is_empty() && self.has_room(&queries, bytes)) {
            return Entry::Admitted(self.entered(&mut queries, query, bytes));
        }
        queries.waiting.push_back(query);
        Entry::Waiting(QueuedQuery { admissions: Arc::clone(self), query, bytes })
    }

    fn entered(self: &Arc<Self>, queries: &mut Queries, query: u64, bytes: usize) -> Admission {
        let operators = Arc::<AtomicUsize>::default();
        queries.running.push(AdmittedQuery { query, promised: bytes, operators: Arc::clone(&operators) });
        Admission { admissions: Arc::clone(self), query, operators, _held: None }
    }

    /// Whether `bytes` more bytes fit beside what is promised to those that run, and beside what they have. Blocks make
    /// room.
    fn has_room(&self, queries: &Queries, bytes: usize) -> bool {
        let has = |running: &AdmittedQuery| running.operators() + self.owners.task_bytes(running.query);
        let taken: usize = queries.running.iter().map(|running| running.promised.max(has(running))).sum();
        // An eighth is for nobody: see the pool.
        queries.running.is_empty() || taken.saturating_add(bytes) <= self.budget.limit() / 8 * 7
    }
}

/// What a query gets that wants to run.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It can run.
    Admitted(Admission),
    /// It has to wait.
    Waiting(QueuedQuery),
}

/// A query's place among those that wait.
#[derive(Debug)]
pub(crate) struct QueuedQuery {
    admissions: Arc<Admissions>,
    query: u64,
    bytes: usize,
}

impl QueuedQuery {
    /// Waits, with the thread, until it is the query's turn, or until nobody else has a clone of `asked`.
    pub(crate) fn wait(self, asked: &Arc<()>) -> Result<Admission> {
        let admissions = &self.admissions;
        let mut queries = admissions.queries.lock();
        let mut still = Duration::ZERO;
        while Arc::strong_count(asked) > 1 {
            let first = queries.waiting.front() == Some(&self.query);
            if first && (still >= STALL || admissions.has_room(&queries, self.bytes)) {
                return Ok(admissions.entered(&mut queries, self.query, self.bytes));
            }
            let before = admissions.budget.moves();
            // Memory that is given back wakes nobody, as that happens all the time.
            admissions.changed.wait_for(&mut queries, LOOK_INTERVAL);
            still = if admissions.budget.moves() == before { still + LOOK_INTERVAL } else { Duration::ZERO };
        }
        exec_err!("query {} was cancelled before it began", self.query)
    }
}

impl Drop for QueuedQuery {
    fn drop(&mut self) {
        self.admissions.queries.lock().waiting.retain(|query| *query != self.query);
        self.admissions.changed.notify_all();
    }
}

/// A query that runs.
#[derive(Debug)]
pub(crate) struct Admission {
    admissions: Arc<Admissions>,
    query: u64,
    operators: Arc<AtomicUsize>,
    /// What else the query has until it ends.
    _held: Option<Held>,
}

/// What a query has, whatever it is.
struct Held(Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held({:?})", self.0.type_id())
    }
}

impl Admission {
    /// The same, which holds something until the query ends.
    pub(crate) fn holding(mut self, held: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        self._held = held.map(Held);
        self
    }

    /// Where the bytes of the query's operators are counted.
    pub(crate) fn operators(&self) -> &Arc<AtomicUsize> {
        &self.operators
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut queries = self.admissions.queries.lock();
        queries.running.retain(|running| running.query != self.query);
        drop(queries);
        self.admissions.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::MemoryUse;
    use super::*;

    fn admissions(budget: &Arc<Budget>) -> Arc<Admissions> {
        Arc::new(Admissions::new(Arc::clone(budget), Arc::default()))
    }

    fn promises(admissions: &Admissions) -> Vec<(u64, usize)> {
        admissions.running().iter().map(|running| (running.query, running.promised)).collect()
    }

    fn admitted(entry: Entry) -> Admission {
        match entry {
            Entry::Admitted(admission) => admission,
            Entry::Waiting(place) => panic!("query {} has to wait", place.query),
        }
    }

    fn waiting(entry: Entry) -> QueuedQuery {
        match entry {
            Entry::Admitted(admission) => panic!("query {} was admitted", admission.query),
            Entry::Waiting(place) => place,
        }
    }

    fn wait(place: QueuedQuery) -> Result<Admission> {
        let asking = Arc::new(());
        place.wait(&Arc::clone(&asking))
    }

    #[test]
    fn queries_wait_for_what_others_need_and_enter_in_their_order() {
        let admissions = admissions(&Arc::new(Budget::new(1000)));
        let first = admitted(admissions.enter(1, 600));
        let second = waiting(admissions.enter(2, 600));
        // It came after one that waits.
        let third = waiting(admissions.enter(3, 100));
        let light = admitted(admissions.enter(4, 10));
        assert_eq!((admissions.count(), promises(&admissions)), (4, vec![(1, 600), (4, 10)]));
        let (second, third) = std::thread::scope(|scope| {
            let third = scope.spawn(|| wait(third).unwrap());
            let second = scope.spawn(|| wait(second).unwrap());
            drop(first);
            (second.join().unwrap(), third.join().unwrap())
        });
        assert_eq!(promises(&admissions), [(4, 10), (2, 600), (3, 100)]);
        drop((light, second, third));
        assert_eq!(admissions.count(), 0);
    }

    #[test]
    fn a_query_does_not_wait_for_what_does_not_move() {
        let budget = Arc::new(Budget::new(1000));
        let admissions = admissions(&budget);
        let outer = admitted(admissions.enter(1, 800));
        assert!(budget.try_take(MemoryUse::Operators, 900));
        outer.operators().store(900, Relaxed);
        let inner = wait(waiting(admissions.enter(2, 800))).unwrap();
        assert_eq!(admissions.running().len(), 2);
        drop((outer, inner));
    }

    #[test]
    fn a_query_that_is_cancelled_leaves_its_place() {
        let admissions = admissions(&Arc::new(Budget::new(1000)));
        let first = admitted(admissions.enter(1, 600));
        let nobody = Arc::new(());
        waiting(admissions.enter(2, 600)).wait(&nobody).unwrap_err();
        drop(first);
        assert_eq!(admitted(admissions.enter(3, 600)).query, 3);
    }
}
