//! The one number that blocks and operators share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arrow_buffer::{MemoryPool, MemoryReservation};

use crate::config::ByteSize;

/// Bytes in use by blocks and by operators, and their limit. All methods are lock-free.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicUsize,
    blocks: AtomicUsize,
    execution: AtomicUsize,
    peak: AtomicUsize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self { limit: AtomicUsize::new(limit), blocks: zero(), execution: zero(), peak: zero() }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the limit, for running queries too.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
    }

    /// Bytes of the distinct buffers of stored blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.load(Relaxed)
    }

    /// Bytes that operators have reserved.
    pub fn execution(&self) -> usize {
        self.execution.load(Relaxed)
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.blocks() + self.execution()
    }

    /// The most bytes that were in use at once since the last [`Budget::reset_peak`].
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Starts to measure the peak anew.
    pub fn reset_peak(&self) {
        self.peak.store(self.used(), Relaxed);
    }

    /// Bytes by which `additional` more would go over the limit.
    pub(super) fn excess(&self, additional: usize) -> usize {
        (self.used() + additional).saturating_sub(self.limit())
    }

    pub(super) fn grow_execution(&self, bytes: usize) {
        self.execution.fetch_add(bytes, Relaxed);
        self.note_peak();
    }

    pub(super) fn shrink_execution(&self, bytes: usize) {
        self.execution.fetch_sub(bytes, Relaxed);
    }

    fn note_peak(&self) {
        self.peak.fetch_max(self.used(), Relaxed);
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} used (operators {}, blocks {})",
            ByteSize(self.used()),
            ByteSize(self.limit()),
            ByteSize(self.execution()),
            ByteSize(self.blocks())
        )
    }
}

/// Counts each physical buffer that it is given once, until the buffer's last reference drops.
#[derive(Debug)]
pub(super) struct BlockBuffers(pub(super) Arc<Budget>);

impl MemoryPool for BlockBuffers {
    fn reserve(&self, size: usize) -> Box<dyn MemoryReservation> {
        self.0.blocks.fetch_add(size, Relaxed);
        self.0.note_peak();
        Box::new(CountedBuffer { budget: Arc::clone(&self.0), size })
    }

    fn available(&self) -> isize {
        self.0.limit() as isize - self.0.used() as isize
    }

    fn used(&self) -> usize {
        self.0.blocks()
    }

    fn capacity(&self) -> usize {
        self.0.limit()
    }
}

#[derive(Debug)]
struct CountedBuffer {
    budget: Arc<Budget>,
    size: usize,
}

impl MemoryReservation for CountedBuffer {
    fn size(&self) -> usize {
        self.size
    }

    fn resize(&mut self, new_size: usize) {
        self.budget.blocks.fetch_add(new_size, Relaxed);
        self.budget.blocks.fetch_sub(self.size, Relaxed);
        self.size = new_size;
    }
}

impl Drop for CountedBuffer {
    fn drop(&mut self) {
        self.budget.blocks.fetch_sub(self.size, Relaxed);
    }
}
