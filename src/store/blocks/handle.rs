//! One stored block: its states, and the handles that keep it alive.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err, resources_err};
use parking_lot::Mutex;

use super::block_store::of;
use super::buffers::Buffers;
use super::state::{BlockState, Eviction};
use crate::block::{Block, BlockMetadata};
use crate::config::ByteSize;
use crate::store::spill::SpilledBlock;
use crate::store::{BlockStore, Owner};

/// When a block will be read, the soonest first. Blocks that are needed later leave memory earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextUse {
    /// As soon as its consumer comes to it.
    Soon,
    /// When all blocks of its operator are there.
    AfterInput,
    /// When somebody reads the dataset that it belongs to.
    Kept,
}

/// A block in memory, with its buffers as they are counted.
#[derive(Debug, Clone)]
pub(crate) struct InMemory {
    pub(crate) block: Block,
    pub(crate) buffers: Arc<Buffers>,
}

/// Where a block is.
pub(crate) type Residence = BlockState<InMemory, Arc<SpilledBlock>>;

/// A block as the store holds it.
pub(crate) struct Stored {
    id: u64,
    next_use: NextUse,
    metadata: BlockMetadata,
    schema: SchemaRef,
    batch_rows: Box<[usize]>,
    residence: Mutex<Residence>,
    /// How many readers need the block in memory. Raised under the lock of `residence` only.
    pins: Arc<AtomicUsize>,
    owner: Arc<Owner>,
    store: Arc<BlockStore>,
}

impl Stored {
    #[expect(clippy::too_many_arguments, reason = "the one caller names them all")]
    pub(super) fn new(
        id: u64,
        next_use: NextUse,
        metadata: BlockMetadata,
        schema: SchemaRef,
        batch_rows: Box<[usize]>,
        residence: Residence,
        owner: &Arc<Owner>,
        store: &Arc<BlockStore>,
    ) -> Self {
        let residence = Mutex::new(residence);
        let (owner, store) = (Arc::clone(owner), Arc::clone(store));
        Self { id, next_use, metadata, schema, batch_rows, residence, pins: Arc::default(), owner, store }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn key(&self) -> (NextUse, u64) {
        (self.next_use, self.id)
    }

    pub(crate) fn metadata(&self) -> BlockMetadata {
        self.metadata
    }

    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.residence.lock().in_memory().is_some()
    }

    pub(crate) fn is_clean(&self) -> bool {
        matches!(*self.residence.lock(), BlockState::Clean(..))
    }

    pub(crate) fn pins(&self) -> &Arc<AtomicUsize> {
        &self.pins
    }

    pub(crate) fn info(&self) -> BlockInfo {
        let residence = self.residence.lock();
        let file = residence.copy();
        BlockInfo {
            id: self.id,
            query: self.owner.query(),
            operator: self.owner.operator().to_owned(),
            state: residence.name(),
            pins: self.pins.load(Relaxed),
            next_use: self.next_use,
            metadata: self.metadata,
            file: file.map(|copy| copy.path().to_owned()),
            file_bytes: file.map_or(0, |copy| copy.file_bytes()),
        }
    }

    /// Moves a clean block out of memory. Returns the bytes that are free, or `None` if it stays.
    pub(crate) fn evict(&self) -> Eviction<usize> {
        let evicted = {
            let mut residence = self.residence.lock();
            residence.evict(self.pins.load(Relaxed) > 0)
        };
        match evicted {
            Eviction::Out(InMemory { block, buffers }) => {
                drop(block);
                self.owner.change_block_bytes(0, self.metadata.size_bytes);
                Eviction::Out(self.store.release(&buffers))
            }
            Eviction::Pinned => Eviction::Pinned,
            Eviction::NotClean => Eviction::NotClean,
        }
    }

    /// The block to write, if it is dirty.
    pub(crate) fn begin_write(&self) -> Option<Block> {
        self.residence.lock().begin_write().map(|held| held.block)
    }

    /// Dirty to clean.
    pub(super) fn end_write(&self, copy: SpilledBlock) {
        self.residence.lock().end_write(Arc::new(copy));
    }

    /// The block, pinned, if it is in memory.
    fn pin_in_memory(&self) -> Option<Block> {
        let residence = self.residence.lock();
        let block = residence.in_memory().map(|held| held.block.clone());
        if block.is_some() {
            self.pins.fetch_add(1, Relaxed);
        }
        block
    }

    /// The batches at `indices` if the block is in memory, or else the first of them from disk, with those that lie
    /// behind it.
    fn batches_or_copies(&self, indices: &[usize]) -> Result<Vec<RecordBatch>> {
        let copy = {
            let residence = self.residence.lock();
            match (residence.in_memory(), residence.copy()) {
                (Some(held), _) => return Ok(indices.iter().map(|i| held.block.batches()[*i].clone()).collect()),
                (None, Some(copy)) => Arc::clone(copy),
                (None, None) => return internal_err!("a block is neither in memory nor on disk"),
            }
        };
        let started = Instant::now();
        let batches = copy.read_first(indices).map_err(|e| e.context(self.doing()))?;
        self.note_restored(copy.batch_bytes(&indices[..batches.len()]), started);
        Ok(batches)
    }

    /// Reads a spilled block back into memory, if there is room, so that it can be pinned.
    fn restore(self: &Arc<Self>) -> Result<()> {
        let Some(copy) = self.residence.lock().copy().cloned() else {
            return Ok(());
        };
        let store = &self.store;
        let full =
            |bytes| resources_err!("{} needs {}, but memory is {}", self.doing(), ByteSize(bytes), store.budget());
        let size = self.metadata.size_bytes;
        if store.make_room_for(&self.owner, store.budget().excess_of_blocks(size))? == 0
            && store.budget().excess_of_blocks(size) > 0
        {
            return full(size);
        }
        let started = Instant::now();
        let block = copy.read(&self.schema).map_err(|e| e.context(self.doing()))?;
        self.note_restored(copy.file_bytes(), started);
        let buffers = Arc::new(Buffers::of(block.batches()));
        if !store.admit(&buffers, &self.owner)? {
            return full(buffers.bytes());
        }
        let settled = self.residence.lock().settle(InMemory { block, buffers });
        match settled {
            Ok(()) => {
                self.owner.change_block_bytes(size, 0);
                store.add_clean(self);
            }
            // Somebody else was faster.
            Err(not_needed) => {
                store.release(&not_needed.buffers);
            }
        }
        Ok(())
    }

    fn note_restored(&self, bytes: usize, since: Instant) {
        self.owner.note_restored(bytes, since);
        self.store.totals().note_restored(bytes, since);
        self.store.budget().moved();
    }

    fn doing(&self) -> String {
        format!("restoring a spilled block{}", of(&self.owner))
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.store.forget(self);
        if let Some(held) = self.residence.get_mut().in_memory() {
            self.store.release(&held.buffers);
            self.owner.change_block_bytes(0, self.metadata.size_bytes);
        }
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({})", self.id)
    }
}

/// A block of the store as it stands.
#[derive(Debug, Clone)]
pub struct BlockInfo {
    /// Its number in the session, in the order of puts.
    pub id: u64,
    /// Number of the query that put it, 0 for none.
    pub query: u64,
    /// Name of the operator that put it.
    pub operator: String,
    /// `dirty` (in memory only), `clean` (in memory and on disk) or `spilled` (on disk only).
    pub state: &'static str,
    /// How many readers need it in memory.
    pub pins: usize,
    /// When it will be read.
    pub next_use: NextUse,
    /// Rows and bytes.
    pub metadata: BlockMetadata,
    /// The file that has its copy.
    pub file: Option<std::path::PathBuf>,
    /// Bytes of the copy.
    pub file_bytes: usize,
}

/// Keeps one block of the store alive. Cloning shares the block; the last drop frees it.
#[derive(Clone)]
pub struct BlockHandle(Arc<Stored>);

impl BlockHandle {
    pub(crate) fn new(stored: Arc<Stored>) -> Self {
        Self(stored)
    }

    /// Rows and bytes, without touching the block.
    pub fn metadata(&self) -> BlockMetadata {
        self.0.metadata
    }

    /// Columns of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    /// Rows of each batch of the block.
    pub fn batch_rows(&self) -> &[usize] {
        &self.0.batch_rows
    }

    /// One batch of the block if the block is in memory.
    pub fn batch_in_memory(&self, index: usize) -> Option<RecordBatch> {
        self.0.residence.lock().in_memory().map(|held| held.block.batches()[index].clone())
    }

    /// Whether the block is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.0.residence.lock().in_memory().is_some()
    }

    /// One batch of the block; of a spilled block only this batch is read back, and the block stays where it is.
    ///
    /// # Errors
    ///
    /// Where a spilled block cannot be read, or is not what was written.
    pub fn get_batch(&self, index: usize) -> Result<RecordBatch> {
        let mut batches = self.0.batches_or_copies(&[index])?;
        batches.pop().map_or_else(|| internal_err!("a block has no batch {index}"), Ok)
    }

    /// The batches at `indices`, each as with [`BlockHandle::get_batch`]. Of a spilled block those that lie behind each
    /// other are read together, some at a time.
    ///
    /// # Errors
    ///
    /// Where a spilled block cannot be read, or is not what was written. An error of the stream.
    pub fn batches(&self, indices: impl IntoIterator<Item = usize>) -> impl Iterator<Item = Result<RecordBatch>> {
        let (indices, mut next, handle) = (indices.into_iter().collect::<Vec<_>>(), 0, self.clone());
        let mut read = Vec::new().into_iter();
        std::iter::from_fn(move || {
            if read.len() == 0 && next < indices.len() {
                match handle.0.batches_or_copies(&indices[next..]) {
                    Ok(batches) => {
                        next += batches.len();
                        read = batches.into_iter();
                    }
                    Err(e) => {
                        next = indices.len();
                        return Some(Err(e));
                    }
                }
            }
            read.next().map(Ok)
        })
    }

    /// All batches, as with [`BlockHandle::batches`].
    ///
    /// # Errors
    ///
    /// Where a spilled block cannot be read, or is not what was written.
    pub fn get(&self) -> Result<Block> {
        let batches = self.batches(0..self.batch_rows().len()).collect::<Result<Vec<_>>>()?;
        Ok(Block::new(Arc::clone(self.schema()), batches))
    }

    /// Brings the whole block into memory and keeps it there until the pin drops.
    ///
    /// # Errors
    ///
    /// Where it does not fit into memory, or cannot be read.
    pub fn pin(&self) -> Result<PinnedBlock> {
        loop {
            if let Some(block) = self.0.pin_in_memory() {
                return Ok(PinnedBlock { handle: self.clone(), block });
            }
            self.0.restore()?;
        }
    }
}

impl fmt::Debug for BlockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHandle({:?})", self.0.metadata)
    }
}

/// A block that stays in memory as long as this lives.
#[derive(Debug)]
pub struct PinnedBlock {
    handle: BlockHandle,
    block: Block,
}

impl PinnedBlock {
    /// The block.
    pub fn block(&self) -> &Block {
        &self.block
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.handle.0.pins.fetch_sub(1, Relaxed);
    }
}
