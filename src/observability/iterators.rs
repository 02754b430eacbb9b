//! Those who hand rows out batch by batch, and how they stand.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

/// How a consumer of an iterator stands.
#[derive(Debug, Clone)]
pub(crate) struct IteratorStatus {
    pub(crate) name: String,
    /// The number of the consumer; 0 where there is one.
    pub(crate) consumer: u64,
    pub(crate) state: &'static str,
    /// Empty where it does not wait.
    pub(crate) waits_for: String,
    pub(crate) epoch: Option<u64>,
    pub(crate) window: Option<u64>,
    /// Rows that it got.
    pub(crate) rows: u64,
    pub(crate) waited: Duration,
    /// In which it did something else.
    pub(crate) user: Duration,
    /// Bytes that lie ready for it.
    pub(crate) buffered_bytes: u64,
    /// Empty where there is none.
    pub(crate) token: String,
}

/// Something whose consumers are seen in `blockyard.iterators`.
pub(crate) trait ObservedIterator: Debug + Send + Sync {
    /// One for each consumer.
    fn statuses(&self) -> Vec<IteratorStatus>;
}

/// The iterators of a session that are not dropped.
#[derive(Debug, Default)]
pub(super) struct ObservedIterators {
    all: Mutex<Vec<Weak<dyn ObservedIterator>>>,
    /// How many there have been.
    names: AtomicU64,
}

impl ObservedIterators {
    /// A name for an iterator of such a kind.
    pub(super) fn name(&self, kind: &str) -> String {
        format!("{kind} {}", self.names.fetch_add(1, Relaxed) + 1)
    }

    /// Shows an iterator until it is dropped.
    pub(super) fn add(&self, iterator: &Arc<dyn ObservedIterator>) {
        let mut all = self.all.lock();
        all.retain(|iterator| iterator.strong_count() > 0);
        all.push(Arc::downgrade(iterator));
    }

    /// How all of them stand.
    pub(super) fn statuses(&self) -> Vec<IteratorStatus> {
        let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().flat_map(|iterator| iterator.statuses()).collect()
    }
}
