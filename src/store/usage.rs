//! What one operator, or everything together, moved in and out of the store.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counters of blocks put, spilled and restored. Bytes are those of the spill files.
#[derive(Debug, Default)]
pub struct StoreUsage {
    put_blocks: AtomicUsize,
    spilled_blocks: AtomicUsize,
    spilled_bytes: AtomicUsize,
    restored_bytes: AtomicUsize,
}

impl StoreUsage {
    /// Blocks put into the store.
    pub fn put_blocks(&self) -> usize {
        self.put_blocks.load(Relaxed)
    }

    /// Blocks written to the spill directory.
    pub fn spilled_blocks(&self) -> usize {
        self.spilled_blocks.load(Relaxed)
    }

    /// Bytes written to the spill directory.
    pub fn spilled_bytes(&self) -> usize {
        self.spilled_bytes.load(Relaxed)
    }

    /// Bytes read back from the spill directory.
    pub fn restored_bytes(&self) -> usize {
        self.restored_bytes.load(Relaxed)
    }

    pub(super) fn note_put(&self) {
        self.put_blocks.fetch_add(1, Relaxed);
    }

    pub(super) fn note_spilled(&self, bytes: usize) {
        self.spilled_blocks.fetch_add(1, Relaxed);
        self.spilled_bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn note_restored(&self, bytes: usize) {
        self.restored_bytes.fetch_add(bytes, Relaxed);
    }
}
