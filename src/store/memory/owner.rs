//! Who holds blocks, and what it moved in and out of the store.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A query and an operator of it, with counters of the blocks that it put, spilled and restored. Bytes on disk are
/// those of the spill files, that is compressed.
#[derive(Debug, Default)]
pub struct Owner {
    name: OnceLock<(u64, String)>,
    known: AtomicBool,
    block_bytes: AtomicUsize,
    task_bytes: AtomicUsize,
    put_blocks: AtomicUsize,
    spilled_blocks: AtomicUsize,
    spilled_bytes: AtomicUsize,
    spill_nanos: AtomicUsize,
    restored_bytes: AtomicUsize,
    restore_nanos: AtomicUsize,
    memory_wait_nanos: AtomicUsize,
    clean_evictions: AtomicUsize,
    dirty_evictions: AtomicUsize,
}

/// All owners that are still there.
#[derive(Debug, Default)]
pub(crate) struct Owners(Mutex<Vec<Weak<Owner>>>);

impl Owners {
    pub(crate) fn all(&self) -> Vec<Arc<Owner>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add(&self, owner: &Arc<Owner>) {
        if owner.is_new() {
            let mut owners = self.0.lock();
            owners.retain(|owner| owner.strong_count() > 0);
            owners.push(Arc::downgrade(owner));
        }
    }

    /// Bytes of the working sets of a query's tasks.
    pub(crate) fn task_bytes(&self, query: u64) -> usize {
        self.all().iter().filter(|owner| owner.query() == query).map(|owner| owner.task_bytes()).sum()
    }
}

impl Owner {
    /// Says who this is: the number of the query, 0 for none, and the name of the operator. The first name stays.
    pub fn describe(&self, query: u64, operator: impl FnOnce() -> String) {
        self.name.get_or_init(|| (query, operator()));
    }

    /// Number of the query, 0 where no query holds the blocks.
    pub fn query(&self) -> u64 {
        self.name.get().map_or(0, |(query, _)| *query)
    }

    /// Name of the operator.
    pub fn operator(&self) -> &str {
        self.name.get().map_or("", |(_, operator)| operator)
    }

    /// Bytes of its blocks that are in memory. Buffers that several blocks share count for each of them.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes.load(Relaxed)
    }

    /// Bytes of the working sets of its tasks.
    pub fn task_bytes(&self) -> usize {
        self.task_bytes.load(Relaxed)
    }

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

    /// Time spent on writing them, summed over threads.
    pub fn spill_time(&self) -> Duration {
        Duration::from_nanos(self.spill_nanos.load(Relaxed) as u64)
    }

    /// Bytes read back from the spill directory.
    pub fn restored_bytes(&self) -> usize {
        self.restored_bytes.load(Relaxed)
    }

    /// Time spent on reading them back, summed over threads.
    pub fn restore_time(&self) -> Duration {
        Duration::from_nanos(self.restore_nanos.load(Relaxed) as u64)
    }

    /// Time spent on making room, summed over threads: until others had written their blocks, or writing those oneself.
    pub fn memory_wait(&self) -> Duration {
        Duration::from_nanos(self.memory_wait_nanos.load(Relaxed) as u64)
    }

    /// Blocks that left memory without a write, because they had been written before anybody needed the room.
    pub fn clean_evictions(&self) -> usize {
        self.clean_evictions.load(Relaxed)
    }

    /// Blocks that had to be written when somebody needed the room.
    pub fn dirty_evictions(&self) -> usize {
        self.dirty_evictions.load(Relaxed)
    }

    /// Whether the store hears of it for the first time.
    fn is_new(&self) -> bool {
        !self.known.swap(true, Relaxed)
    }

    pub(crate) fn change_block_bytes(&self, more: usize, less: usize) {
        self.block_bytes.fetch_add(more, Relaxed);
        self.block_bytes.fetch_sub(less, Relaxed);
    }

    pub(crate) fn change_task_bytes(&self, more: usize, less: usize) {
        self.task_bytes.fetch_add(more, Relaxed);
        self.task_bytes.fetch_sub(less, Relaxed);
    }

    pub(crate) fn note_put(&self) {
        self.put_blocks.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_spilled(&self, bytes: usize, since: Instant) {
        self.spilled_blocks.fetch_add(1, Relaxed);
        self.spilled_bytes.fetch_add(bytes, Relaxed);
        self.spill_nanos.fetch_add(since.elapsed().as_nanos() as usize, Relaxed);
    }

    pub(crate) fn note_restored(&self, bytes: usize, since: Instant) {
        self.restored_bytes.fetch_add(bytes, Relaxed);
        self.restore_nanos.fetch_add(since.elapsed().as_nanos() as usize, Relaxed);
    }

    pub(crate) fn note_memory_wait(&self, since: Instant) {
        self.memory_wait_nanos.fetch_add(since.elapsed().as_nanos() as usize, Relaxed);
    }

    pub(crate) fn note_evicted(&self, clean: bool) {
        let counter = if clean { &self.clean_evictions } else { &self.dirty_evictions };
        counter.fetch_add(1, Relaxed);
    }
}
