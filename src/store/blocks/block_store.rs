//! [`BlockStore`]: puts blocks, makes room, and writes ahead of need.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;

use datafusion::common::{Result, plan_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use parking_lot::{Condvar, Mutex};

use crate::store::memory::{Admissions, AdmittedQuery, Entry};

use super::buffers::{BufferTable, Buffers};
use super::candidates::{Candidates, Victim};
use super::diverted::Diverted;
use super::handle::{BlockHandle, InMemory, NextUse, Stored};
use super::state::{BlockState, Eviction};
use crate::block::{Block, sliced_bytes};
use crate::config::SpillCompression;
use crate::store::memory::MemoryUse;
use crate::store::memory::Owners;
use crate::store::spill::{OperatorFiles, SpillFiles};
use crate::store::{BlockInfo, Budget, Owner, SpillDirectories};

/// Batches of a block are cut to about this many bytes: what is restored at once.
const PIECE_BYTES: usize = 4 << 20;

/// Holds blocks in memory within the limit of its [`Budget`], and in files beyond. See the module for the model.
pub struct BlockStore {
    budget: Arc<Budget>,
    files: SpillFiles,
    compression: Mutex<SpillCompression>,
    buffers: BufferTable,
    next_id: AtomicU64,
    queries: AtomicU64,
    admissions: Arc<Admissions>,
    blocks: Mutex<BTreeMap<u64, Weak<Stored>>>,
    candidates: Mutex<Candidates>,
    news: Arc<StatusChange>,
    owners: Arc<Owners>,
    totals: Owner,
    diverted: Diverted,
}

/// What threads wait for: a write ended, there may be something to write, or the store is gone.
#[derive(Debug, Default)]
struct StatusChange {
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl StatusChange {
    /// Number of the latest news.
    fn latest(&self) -> u64 {
        self.state.lock().0
    }

    fn tell(&self) {
        self.state.lock().0 += 1;
        self.changed.notify_all();
    }

    fn close(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }

    /// Waits for news after `seen`. Returns whether there is a store still.
    fn wait(&self, seen: u64) -> bool {
        let mut state = self.state.lock();
        while state.0 == seen && !state.1 {
            self.changed.wait(&mut state);
        }
        !state.1
    }
}

impl BlockStore {
    /// A store which spills to `directories`.
    pub fn new(budget: Arc<Budget>, directories: Arc<SpillDirectories>, compression: SpillCompression) -> Self {
        let owners = Arc::<Owners>::default();
        Self {
            admissions: Arc::new(Admissions::new(Arc::clone(&budget), Arc::clone(&owners))),
            budget,
            files: SpillFiles::new(directories),
            compression: Mutex::new(compression),
            buffers: BufferTable::default(),
            next_id: AtomicU64::new(0),
            queries: AtomicU64::new(0),
            blocks: Mutex::default(),
            candidates: Mutex::default(),
            news: Arc::default(),
            owners,
            totals: Owner::default(),
            diverted: Diverted::default(),
        }
    }

    /// The store of the session that a task runs in.
    pub(crate) fn of_task(context: &TaskContext) -> Result<Arc<Self>> {
        context.session_config().get_extension::<Self>().ok_or_else(|| {
            plan_datafusion_err!(
                "this session has no block store; build it with SessionStateBuilderExt::with_blockyard or DataContext"
            )
        })
    }

    /// Rows for which functions failed.
    pub(crate) fn diverted(&self) -> &Diverted {
        &self.diverted
    }

    /// The memory that blocks, operators and tasks share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Where blocks are spilled to.
    pub fn directories(&self) -> &Arc<SpillDirectories> {
        self.files.directories()
    }

    /// Makes DataFusion's operators spill to the same directories, under the same quota.
    pub(crate) fn disk_manager(&self) -> Result<DiskManager> {
        let factory = Arc::new(OperatorFiles(Arc::clone(self.directories())));
        DiskManagerBuilder::default().with_mode(DiskManagerMode::Custom(factory)).build()
    }

    /// Changes how blocks that spill from now on are compressed.
    pub fn set_compression(&self, compression: SpillCompression) {
        *self.compression.lock() = compression;
    }

    /// Changes the limit, for running queries too: what is too much leaves memory at once, as far as it can.
    ///
    /// # Errors
    ///
    /// Where blocks have to go to disk, and the disk fails.
    pub fn set_limit(&self, bytes: usize) -> Result<()> {
        self.budget.set_limit(bytes);
        self.make_room(self.budget.excess(0)).map(|_| ())
    }

    /// A number for a query that starts, from 1 on.
    pub(crate) fn next_query(&self) -> u64 {
        self.queries.fetch_add(1, Relaxed) + 1
    }

    /// How many queries run, or wait for memory.
    pub(crate) fn num_queries(&self) -> usize {
        self.admissions.count()
    }

    /// Promises `bytes` to a query, or lets it wait for them.
    pub(crate) fn enter(&self, query: u64, bytes: usize) -> Entry {
        self.admissions.enter(query, bytes)
    }

    /// Bytes that the operators of other queries than `query` have, or could have by what was promised to them.
    pub(crate) fn operators_beside(&self, query: u64) -> usize {
        let others = self.admissions.running().into_iter().filter(|other| other.query != query);
        // What tasks have is counted as theirs.
        let open = |other: &AdmittedQuery| other.promised.saturating_sub(self.owners.task_bytes(other.query));
        others.map(|other| open(&other).max(other.operators())).sum()
    }

    /// What all owners together moved.
    pub fn totals(&self) -> &Owner {
        &self.totals
    }

    /// Who holds memory or has moved blocks, as far as they are still there.
    pub fn owners(&self) -> Vec<Arc<Owner>> {
        self.owners.all()
    }

    /// The blocks that are held now, by their age.
    pub fn blocks(&self) -> Vec<BlockInfo> {
        let blocks: Vec<_> = self.blocks.lock().values().filter_map(Weak::upgrade).collect();
        blocks.iter().map(|stored| stored.info()).collect()
    }

    /// Keeps a block until the last clone of the handle drops, on behalf of `owner`. `next_use` says when it will be
    /// read, so that the one that is needed last leaves memory first. When there is no room even so, the block goes to
    /// disk at once.
    ///
    /// # Errors
    ///
    /// Where the block has to go to disk, and the disk fails.
    pub fn put(self: &Arc<Self>, block: Block, next_use: NextUse, owner: &Arc<Owner>) -> Result<BlockHandle> {
        self.put_pieces(cut(block), next_use, owner)
    }

    /// As [`BlockStore::put`], with the batches as they are, so that they can be read one by one by their index.
    ///
    /// # Errors
    ///
    /// As [`BlockStore::put`].
    pub fn put_pieces(self: &Arc<Self>, block: Block, next_use: NextUse, owner: &Arc<Owner>) -> Result<BlockHandle> {
        self.owners.add(owner);
        owner.note_put();
        self.totals.note_put();
        let metadata = block.metadata();
        let schema = Arc::clone(block.schema());
        let batch_rows = block.batches().iter().map(|batch| batch.num_rows()).collect();
        let buffers = Arc::new(Buffers::of(block.batches()));
        let residence = match self.admit(&buffers, owner)? {
            true => BlockState::Dirty(InMemory { block, buffers }),
            false => BlockState::Spilled(Arc::new(self.write_block(&block, owner)?)),
        };
        let id = self.next_id.fetch_add(1, Relaxed);
        let stored = Arc::new(Stored::new(id, next_use, metadata, schema, batch_rows, residence, owner, self));
        self.blocks.lock().insert(id, Arc::downgrade(&stored));
        if stored.is_in_memory() {
            owner.change_block_bytes(metadata.size_bytes, 0);
            self.candidates.lock().add_dirty(&stored);
            self.wake_writer();
        }
        Ok(BlockHandle::new(stored))
    }

    /// Reserves memory for what a task works on. Blocks leave for it. When that is not enough it is granted all the
    /// same, so that work that has begun can end: what tasks need is planned before a query starts.
    pub(crate) fn working_set(self: &Arc<Self>, owner: &Arc<Owner>, bytes: usize) -> Result<WorkingSet> {
        self.owners.add(owner);
        let mut set = WorkingSet { store: Arc::clone(self), owner: Arc::clone(owner), bytes: 0 };
        set.resize(bytes)?;
        Ok(set)
    }

    /// Counts the buffers of a block of `owner`, making room for them. Returns whether there is room.
    pub(crate) fn admit(&self, buffers: &Buffers, owner: &Owner) -> Result<bool> {
        while let Err(missing) = self.buffers.try_add(buffers, &self.budget) {
            if self.make_room_for(owner, self.budget.excess_of_blocks(missing).max(1))? == 0
                && self.budget.excess_of_blocks(missing) > 0
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// No longer counts the buffers of a block. Returns the bytes that are free.
    pub(crate) fn release(&self, buffers: &Buffers) -> usize {
        self.buffers.remove(buffers, &self.budget)
    }

    /// Moves unpinned blocks out of memory until `bytes` are free or none is left: clean ones first, and among equals
    /// the one whose next use is farthest. Returns the bytes that were freed.
    pub(crate) fn make_room(&self, bytes: usize) -> Result<usize> {
        let mut freed = 0;
        while freed < bytes {
            let seen = self.news.latest();
            let victim = self.candidates.lock().next_victim();
            match victim {
                Ok(victim) => freed += self.evict(&victim)?,
                Err(false) => break,
                // What is being written can be dropped soon.
                Err(true) => {
                    self.news.wait(seen);
                }
            }
        }
        Ok(freed)
    }

    /// As [`Self::make_room`], for what `owner` wants to keep: that it takes time is its to know.
    pub(crate) fn make_room_for(&self, owner: &Owner, bytes: usize) -> Result<usize> {
        let started = Instant::now();
        let freed = self.make_room(bytes);
        owner.note_memory_wait(started);
        self.totals.note_memory_wait(started);
        freed
    }

    fn evict(&self, victim: &Victim) -> Result<usize> {
        let (stored, clean) = match victim {
            Victim::Clean(stored) => (stored, true),
            Victim::Dirty(stored) => {
                self.write(stored)?;
                self.candidates.lock().remove(stored);
                (stored, false)
            }
        };
        match stored.evict() {
            Eviction::Out(freed) => {
                stored.owner().note_evicted(clean);
                self.totals.note_evicted(clean);
                Ok(freed)
            }
            // Somebody pinned it meanwhile.
            Eviction::Pinned => {
                self.candidates.lock().add_clean(stored);
                Ok(0)
            }
            Eviction::NotClean => Ok(0),
        }
    }

    /// Writes a block whose turn it is, and makes it clean.
    fn write(&self, stored: &Arc<Stored>) -> Result<()> {
        let result = match stored.begin_write() {
            Some(block) => {
                let written = self.write_block(&block, stored.owner());
                drop(block);
                written.map(|copy| stored.end_write(copy))
            }
            None => Ok(()),
        };
        self.candidates.lock().end_write(stored);
        self.news.tell();
        result
    }

    fn write_block(&self, block: &Block, owner: &Owner) -> Result<crate::store::spill::SpilledBlock> {
        let started = Instant::now();
        // Nobody waits for this lock while a block is written.
        let compression = *self.compression.lock();
        let spilled = crate::store::spill::SpilledBlock::write(block, &self.files, compression)
            .map_err(|e| e.context(format!("spilling a block of {} rows{}", block.num_rows(), of(owner))))?;
        owner.note_spilled(spilled.file_bytes(), started);
        self.totals.note_spilled(spilled.file_bytes(), started);
        self.budget.moved();
        Ok(spilled)
    }

    /// Bytes from which on blocks are written ahead of need: Ray's 80 %.
    fn write_from(&self) -> usize {
        self.budget.limit() / 5 * 4
    }

    /// Bytes that should be clean when memory is short.
    fn clean_target(&self) -> usize {
        self.budget.limit() / 5
    }

    fn has_work_ahead(&self) -> bool {
        self.budget.used() > self.write_from() && self.candidates.lock().wants_writing(self.clean_target())
    }

    pub(crate) fn wake_writer(&self) {
        if self.has_work_ahead() {
            self.news.tell();
        }
    }

    /// Writes blocks ahead of need, so that they can leave without a wait, as long as the store is there. To be run on
    /// a thread of its own. An error is left to whoever needs the room: the block stays as it is.
    pub(crate) fn write_behind(store: &Arc<Self>) -> impl FnOnce() + Send + 'static {
        let (store, news) = (Arc::downgrade(store), Arc::clone(&store.news));
        move || {
            loop {
                let seen = news.latest();
                let Some(store) = store.upgrade() else {
                    return;
                };
                let next = store.has_work_ahead().then(|| store.candidates.lock().next_write()).flatten();
                let wrote = next.is_some_and(|stored| store.write(&stored).is_ok());
                drop(store);
                if !wrote && !news.wait(seen) {
                    return;
                }
            }
        }
    }

    pub(crate) fn forget(&self, stored: &Stored) {
        self.candidates.lock().remove(stored);
        self.blocks.lock().remove(&stored.id());
    }

    pub(crate) fn add_clean(&self, stored: &Arc<Stored>) {
        self.candidates.lock().add_clean(stored);
    }
}

/// How messages name an owner.
pub(crate) fn of(owner: &Owner) -> String {
    match owner.operator() {
        "" => String::new(),
        operator => format!(" of {operator}"),
    }
}

/// Cuts batches that are too large to be restored at once.
fn cut(block: Block) -> Block {
    let large = |batch: &datafusion::arrow::array::RecordBatch| {
        batch.num_rows() > 1 && batch.get_array_memory_size() > PIECE_BYTES && sliced_bytes(batch) > PIECE_BYTES
    };
    if !block.batches().iter().any(large) {
        return block;
    }
    let schema = Arc::clone(block.schema());
    let mut pieces = Vec::new();
    for batch in block.into_batches() {
        let rows = match large(&batch) {
            true => (batch.num_rows() * PIECE_BYTES / sliced_bytes(&batch)).max(1),
            false => batch.num_rows().max(1),
        };
        let starts = (0..batch.num_rows().max(1)).step_by(rows);
        pieces.extend(starts.map(|start| batch.slice(start, rows.min(batch.num_rows() - start))));
    }
    Block::new(schema, pieces)
}

impl Drop for BlockStore {
    fn drop(&mut self) {
        self.news.close();
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockStore({})", self.budget)
    }
}

/// Memory that a running task has reserved.
#[derive(Debug)]
pub(crate) struct WorkingSet {
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
    bytes: usize,
}

impl WorkingSet {
    /// Changes what is reserved, over the limit where need be. Fails when the disk fails to which blocks leave.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<()> {
        if !self.try_resize(bytes)? {
            self.store.budget.take(MemoryUse::Tasks, bytes - self.bytes);
            self.set(bytes);
        }
        Ok(())
    }

    /// Changes what is reserved if there is room. Returns whether there was.
    pub(crate) fn try_resize(&mut self, bytes: usize) -> Result<bool> {
        if bytes == self.bytes {
            return Ok(true);
        }
        let budget = &self.store.budget;
        let more = bytes.saturating_sub(self.bytes);
        budget.give_back(MemoryUse::Tasks, self.bytes.saturating_sub(bytes));
        while !budget.try_take(MemoryUse::Tasks, more) {
            if self.store.make_room_for(&self.owner, budget.excess(more).max(1))? == 0 && budget.excess(more) > 0 {
                return Ok(false);
            }
        }
        if more > 0 {
            self.store.wake_writer();
        }
        self.set(bytes);
        Ok(true)
    }

    /// Changes what is reserved as far as nothing has to leave memory for that. Returns whether there was room.
    pub(crate) fn resize_within_what_is_free(&mut self, bytes: usize) -> bool {
        let (budget, more) = (&self.store.budget, bytes.saturating_sub(self.bytes));
        budget.give_back(MemoryUse::Tasks, self.bytes.saturating_sub(bytes));
        if !budget.try_take(MemoryUse::Tasks, more) {
            return false;
        }
        self.set(bytes);
        true
    }

    fn set(&mut self, bytes: usize) {
        self.owner.change_task_bytes(bytes, self.bytes);
        self.bytes = bytes;
    }
}

impl Drop for WorkingSet {
    fn drop(&mut self) {
        self.store.budget.give_back(MemoryUse::Tasks, self.bytes);
        self.set(0);
    }
}
