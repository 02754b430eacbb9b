//! The pool as one query sees it.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

use super::SharedMemoryPool;

/// What the pool knows of a query's plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryNeeds {
    /// Bytes that it was planned for.
    pub(crate) memory: usize,
    /// Bytes that a merge of its sorts takes for each byte of the rows: those of the batch and of its keys.
    pub(crate) merge_factor: usize,
    /// Threads that it may have.
    pub(crate) threads: usize,
    /// Stages of it that build blocks at the same time, at most.
    pub(crate) builders: usize,
}

/// The pool as one query sees it: what its operators reserve is theirs by name.
#[derive(Debug)]
pub(crate) struct QueryPool {
    query: u64,
    needs: QueryNeeds,
    shared: Arc<SharedMemoryPool>,
    /// What its operators have.
    bytes: Arc<AtomicUsize>,
    /// Blocks that it has lost because a task failed.
    errored_blocks: AtomicUsize,
    /// Who is asked too when an operator wants more, by its number.
    governors: Mutex<HashMap<usize, Arc<dyn Governor>>>,
}

/// Decides beside the pool whether an operator may take more: one that may not spills or gives what it has, as where
/// there is no more.
pub(crate) trait Governor: fmt::Debug + Send + Sync {
    /// Whether the operator may have so many bytes.
    fn may_have(&self, bytes: usize) -> bool;
}

thread_local! {
    /// The operator that was the last to register on this thread.
    static LAST: RefCell<Option<(usize, String)>> = const { RefCell::new(None) };
}

impl QueryPool {
    /// The view of query number `query`. What its operators have is counted in `bytes` too.
    pub(crate) fn new(query: u64, needs: QueryNeeds, shared: Arc<SharedMemoryPool>, bytes: Arc<AtomicUsize>) -> Self {
        Self { query, needs, shared, bytes, errored_blocks: AtomicUsize::new(0), governors: Mutex::default() }
    }

    /// Asks `governor` about the operator that is the last to register on this thread while `execute` runs, if its
    /// name begins so and the query of the task is known.
    pub(crate) fn governed<T>(
        context: &TaskContext,
        name: &str,
        governor: Arc<dyn Governor>,
        execute: impl FnOnce() -> T,
    ) -> T {
        LAST.set(None);
        let executed = execute();
        let pool: &dyn Any = context.memory_pool().as_ref();
        if let (Some(pool), Some((operator, its_name))) = (pool.downcast_ref::<Self>(), LAST.take())
            && its_name.starts_with(name)
        {
            pool.governors.lock().insert(operator, governor);
        }
        executed
    }

    fn may_have(&self, reservation: &MemoryReservation, bytes: usize) -> bool {
        let governor = self.governors.lock().get(&reservation.consumer().id()).cloned();
        governor.is_none_or(|governor| governor.may_have(bytes))
    }

    /// What the query of a task was planned for, where that is known.
    pub(crate) fn needs_of(context: &TaskContext) -> Option<&QueryNeeds> {
        let pool: &dyn Any = context.memory_pool().as_ref();
        pool.downcast_ref::<Self>().map(|pool| &pool.needs)
    }

    /// Blocks that the query of a task has lost, where the query is known.
    pub(crate) fn errored_blocks_of(context: &TaskContext) -> Option<&AtomicUsize> {
        let pool: &dyn Any = context.memory_pool().as_ref();
        pool.downcast_ref::<Self>().map(|pool| &pool.errored_blocks)
    }

    /// Number of the query that a task belongs to, 0 where it is not known.
    pub(crate) fn query_of(context: &TaskContext) -> u64 {
        let pool: &dyn Any = context.memory_pool().as_ref();
        pool.downcast_ref::<Self>().map_or(0, |pool| pool.query)
    }
}

impl MemoryPool for QueryPool {
    fn name(&self) -> &str {
        self.shared.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.shared.register_for(self.query, Some(&self.needs), consumer);
        LAST.set(Some((consumer.id(), consumer.name().to_owned())));
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.shared.unregister(consumer);
        self.governors.lock().remove(&consumer.id());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.shared.grow(reservation, additional);
        self.bytes.fetch_add(additional, Relaxed);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.shared.shrink(reservation, shrink);
        self.bytes.fetch_sub(shrink, Relaxed);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if !self.may_have(reservation, reservation.size() + additional) {
            return Err(DataFusionError::ResourcesExhausted(format!("{} has enough", reservation.consumer().name())));
        }
        self.shared.try_grow(reservation, additional)?;
        self.bytes.fetch_add(additional, Relaxed);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.shared.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.shared.memory_limit()
    }
}

impl fmt::Display for QueryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}
