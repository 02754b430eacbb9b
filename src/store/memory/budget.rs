//! The one number that blocks, operators and tasks share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::pressure::{Allocator, Pressure};
use crate::config::ByteSize;

/// What bytes are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    /// Buffers of stored blocks.
    Blocks,
    /// Reservations of DataFusion's operators.
    Operators,
    /// Working sets of tasks: what they decode, encode and buffer.
    Tasks,
}

/// Of a limit above `SMALL_LIMIT`, one in so many parts of what is above stays free of memory that an allocator keeps:
/// what is not counted grows with what passes through memory, and is as much as this for gigabytes.
const ALLOCATOR_PART: usize = 16;
/// The same for blocks: they fill all that they may, and an allocator that can keep nothing makes everything slow.
const BLOCKS_PART: usize = 5;
const SMALL_LIMIT: usize = 256 << 20;

/// Bytes in use, by what they are used for, and their limit. All methods are lock-free.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    used: AtomicUsize,
    by_use: [AtomicUsize; 3],
    peak: AtomicUsize,
    moves: AtomicUsize,
    pressure: Option<Arc<Pressure>>,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self {
            limit: AtomicUsize::new(limit),
            used: zero(),
            by_use: [zero(), zero(), zero()],
            peak: zero(),
            moves: zero(),
            pressure: None,
        }
    }

    /// The same budget, which tells the allocator whether memory is short.
    pub(crate) fn with_allocator(mut self, allocator: Option<Arc<dyn Allocator>>) -> Self {
        self.pressure = allocator.map(|allocator| Arc::new(Pressure::new(allocator)));
        self
    }

    /// Watches memory for the allocator, if there is one, as long as the budget is there. To be run on a thread of its
    /// own.
    pub(crate) fn watch(budget: &Arc<Self>) -> Option<impl FnOnce() + Send + 'static> {
        let (pressure, budget) = (Arc::clone(budget.pressure.as_ref()?), Arc::downgrade(budget));
        Some(move || pressure.watch(&budget))
    }

    /// Something moves: bytes were taken, given back, written or read.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Relaxed);
        if let Some(pressure) = &self.pressure {
            pressure.moved();
        }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the limit, for running queries too.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
        self.moved();
    }

    /// Bytes of the distinct buffers of stored blocks.
    pub fn blocks(&self) -> usize {
        self.of(MemoryUse::Blocks).load(Relaxed)
    }

    /// Bytes that operators have reserved.
    pub fn execution(&self) -> usize {
        self.of(MemoryUse::Operators).load(Relaxed)
    }

    /// Bytes of the working sets of running tasks.
    pub fn tasks(&self) -> usize {
        self.of(MemoryUse::Tasks).load(Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// The most bytes that were in use at once since the last [`Budget::reset_peak`].
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// How often bytes were taken, given back, written or read: where it stays the same, nothing moves.
    pub(crate) fn moves(&self) -> usize {
        self.moves.load(Relaxed)
    }

    /// Starts to measure the peak anew.
    pub fn reset_peak(&self) {
        self.peak.store(self.used(), Relaxed);
    }

    /// Bytes by which `additional` more would go over the limit.
    pub(crate) fn excess(&self, additional: usize) -> usize {
        self.used().saturating_add(additional).saturating_sub(self.limit())
    }

    /// The same for blocks.
    pub(crate) fn excess_of_blocks(&self, additional: usize) -> usize {
        self.used().saturating_add(additional).saturating_sub(self.limit_of(MemoryUse::Blocks))
    }

    /// What all bytes in use may be after some were taken for `what`.
    pub(crate) fn limit_of(&self, what: MemoryUse) -> usize {
        let limit = self.limit();
        match what {
            MemoryUse::Blocks => limit - limit.saturating_sub(SMALL_LIMIT) / BLOCKS_PART,
            MemoryUse::Operators | MemoryUse::Tasks => limit,
        }
    }

    /// What the process may have before its allocator keeps nothing.
    pub(crate) fn allocator_limit(&self) -> usize {
        let limit = self.limit();
        limit - limit.saturating_sub(SMALL_LIMIT) / ALLOCATOR_PART
    }

    /// Takes `bytes` unless that goes over the limit. Returns whether it did.
    pub(crate) fn try_take(&self, what: MemoryUse, bytes: usize) -> bool {
        let limit = self.limit_of(what);
        let within = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = bytes == 0 || self.used.fetch_update(Relaxed, Relaxed, within).is_ok();
        if taken {
            self.note_taken(what, bytes);
        }
        taken
    }

    /// Takes `bytes` even if that goes over the limit.
    pub(crate) fn take(&self, what: MemoryUse, bytes: usize) {
        self.used.fetch_add(bytes, Relaxed);
        self.note_taken(what, bytes);
    }

    fn note_taken(&self, what: MemoryUse, bytes: usize) {
        self.of(what).fetch_add(bytes, Relaxed);
        self.peak.fetch_max(self.used(), Relaxed);
        self.moved();
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&self, what: MemoryUse, bytes: usize) {
        self.of(what).fetch_sub(bytes, Relaxed);
        self.used.fetch_sub(bytes, Relaxed);
        self.moved();
    }

    fn of(&self, what: MemoryUse) -> &AtomicUsize {
        &self.by_use[what as usize]
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(pressure) = &self.pressure {
            pressure.end();
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} used (operators {}, blocks {}, tasks {})",
            ByteSize(self.used()),
            ByteSize(self.limit()),
            ByteSize(self.execution()),
            ByteSize(self.blocks()),
            ByteSize(self.tasks())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_never_goes_over_the_limit() {
        let budget = Budget::new(100);
        assert!(budget.try_take(MemoryUse::Blocks, 60));
        assert!(!budget.try_take(MemoryUse::Operators, 41));
        assert!(budget.try_take(MemoryUse::Operators, 40));
        assert_eq!((budget.used(), budget.blocks(), budget.execution()), (100, 60, 40));
        budget.take(MemoryUse::Tasks, 5);
        assert!(!budget.try_take(MemoryUse::Blocks, 1));
        assert!(budget.try_take(MemoryUse::Blocks, 0), "nothing can always be taken");
        budget.give_back(MemoryUse::Tasks, 5);
        budget.give_back(MemoryUse::Blocks, 60);
        assert_eq!((budget.used(), budget.peak()), (40, 105));
    }
}
