//! Which block leaves memory next.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::handle::{NextUse, Stored};

/// Blocks in memory, by the distance of their next use: the last one is needed last.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    dirty: BTreeMap<Key, Candidate>,
    clean: BTreeMap<Key, Candidate>,
    clean_bytes: usize,
    /// Blocks that somebody is writing.
    writing: usize,
}

/// Blocks of one operator are read in the order in which they were put, so the newest is needed last.
type Key = (NextUse, u64);

/// A block, without keeping it alive: the last reference to a block must not drop under the lock of the candidates,
/// which its drop takes.
#[derive(Debug)]
struct Candidate {
    stored: Weak<Stored>,
    pins: Arc<AtomicUsize>,
}

/// A block that is to leave memory.
#[derive(Debug)]
pub(crate) enum Victim {
    /// It has a copy on disk.
    Clean(Arc<Stored>),
    /// It has to be written first, and nobody else will do it until [`Candidates::end_write`].
    Dirty(Arc<Stored>),
}

impl Candidates {
    pub(crate) fn add_dirty(&mut self, stored: &Arc<Stored>) {
        self.dirty.insert(stored.key(), Candidate::of(stored));
    }

    pub(crate) fn add_clean(&mut self, stored: &Arc<Stored>) {
        if self.clean.insert(stored.key(), Candidate::of(stored)).is_none() {
            self.clean_bytes += stored.metadata().size_bytes;
        }
    }

    pub(crate) fn remove(&mut self, stored: &Stored) {
        self.dirty.remove(&stored.key());
        if self.clean.remove(&stored.key()).is_some() {
            self.clean_bytes -= stored.metadata().size_bytes;
        }
    }

    /// A block to move out of memory: a clean one if there is any. Without one, says whether some are being written.
    pub(crate) fn next_victim(&mut self) -> Result<Victim, bool> {
        if let Some(stored) = last_unpinned(&self.clean) {
            self.remove(&stored);
            return Ok(Victim::Clean(stored));
        }
        self.next_write().map(Victim::Dirty).ok_or(self.writing > 0)
    }

    /// A block to write. Nobody else will write it until [`Candidates::end_write`].
    pub(crate) fn next_write(&mut self) -> Option<Arc<Stored>> {
        let stored = last_unpinned(&self.dirty)?;
        self.dirty.remove(&stored.key());
        self.writing += 1;
        Some(stored)
    }

    /// A block that [`Candidates::next_write`] gave is written, or could not be.
    pub(crate) fn end_write(&mut self, stored: &Arc<Stored>) {
        self.writing -= 1;
        match stored.is_clean() {
            true => self.add_clean(stored),
            false => self.add_dirty(stored),
        }
    }

    /// Whether there is something to write while less than `target` bytes are clean.
    pub(crate) fn wants_writing(&self, target: usize) -> bool {
        self.clean_bytes < target && self.dirty.values().any(Candidate::may_leave)
    }
}

impl Candidate {
    fn of(stored: &Arc<Stored>) -> Self {
        Self { stored: Arc::downgrade(stored), pins: Arc::clone(stored.pins()) }
    }

    fn may_leave(&self) -> bool {
        self.pins.load(Relaxed) == 0
    }
}

fn last_unpinned(blocks: &BTreeMap<Key, Candidate>) -> Option<Arc<Stored>> {
    blocks.values().rev().filter(|c| c.may_leave()).find_map(|c| c.stored.upgrade())
}
