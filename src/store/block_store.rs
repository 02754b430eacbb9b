//! [`BlockStore`] and the handles that keep its blocks alive.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::DiskManager;
use parking_lot::Mutex;

use super::budget::BlockBuffers;
use super::spill::SpilledBlock;
use super::{Budget, StoreUsage};
use crate::block::{Block, BlockMetadata};
use crate::config::SpillCompression;
use crate::error::ErrorContext;

/// Holds blocks in memory up to the limit of its [`Budget`], and in files beyond. See the module for the model.
pub struct BlockStore {
    budget: Arc<Budget>,
    disk: Arc<DiskManager>,
    compression: Mutex<SpillCompression>,
    next_id: AtomicU64,
    resident: Mutex<BTreeMap<u64, Weak<Stored>>>,
    totals: StoreUsage,
}

impl BlockStore {
    /// A store which spills through `disk`.
    pub fn new(budget: Arc<Budget>, disk: Arc<DiskManager>, compression: SpillCompression) -> Self {
        Self {
            budget,
            disk,
            compression: Mutex::new(compression),
            next_id: AtomicU64::new(0),
            resident: Mutex::default(),
            totals: StoreUsage::default(),
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

    /// The memory that blocks and operators share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Changes how blocks that spill from now on are compressed.
    pub fn set_compression(&self, compression: SpillCompression) {
        *self.compression.lock() = compression;
    }

    /// What all owners together moved.
    pub fn totals(&self) -> &StoreUsage {
        &self.totals
    }

    /// Keeps a block until the last clone of the handle drops, counting what happens to it for `owner`. Blocks leave for
    /// the disk when memory is over its limit, this one first. Fails when the disk does.
    pub fn put(self: &Arc<Self>, block: Block, owner: &Arc<StoreUsage>) -> Result<BlockHandle> {
        let metadata = block.metadata();
        self.claim(block.batches());
        let id = self.next_id.fetch_add(1, Relaxed);
        let stored = Arc::new(Stored {
            id,
            metadata,
            state: Mutex::new(State::Resident(block)),
            owner: Arc::clone(owner),
            store: Arc::clone(self),
        });
        owner.note_put();
        self.totals.note_put();
        self.resident.lock().insert(id, Arc::downgrade(&stored));
        self.make_room(self.budget.excess(0))?;
        Ok(BlockHandle(stored))
    }

    /// Spills blocks, newest first, until `bytes` are free or no block is left in memory. Returns whether any was spilled.
    pub(super) fn make_room(&self, bytes: usize) -> Result<bool> {
        let before = self.budget.blocks();
        let mut spilled = false;
        while bytes > 0 && before.saturating_sub(self.budget.blocks()) < bytes {
            let Some((id, newest)) = self.resident.lock().pop_last() else {
                break;
            };
            let Some(stored) = newest.upgrade() else {
                continue;
            };
            if let Err(e) = stored.spill() {
                self.resident.lock().insert(id, newest);
                return Err(e);
            }
            spilled = true;
        }
        Ok(spilled)
    }

    fn claim(&self, batches: &[RecordBatch]) {
        let buffers = BlockBuffers(Arc::clone(&self.budget));
        for batch in batches {
            batch.claim(&buffers);
        }
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockStore({})", self.budget)
    }
}

struct Stored {
    id: u64,
    metadata: BlockMetadata,
    state: Mutex<State>,
    owner: Arc<StoreUsage>,
    store: Arc<BlockStore>,
}

enum State {
    Resident(Block),
    Spilled(SpilledBlock),
}

impl Stored {
    fn spill(&self) -> Result<()> {
        let mut state = self.state.lock();
        if let State::Resident(block) = &*state {
            let spilled = SpilledBlock::write(block, &self.store.disk, *self.store.compression.lock())
                .while_doing(|| format!("spilling a block of {} rows", self.metadata.num_rows))?;
            self.owner.note_spilled(spilled.file_bytes());
            self.store.totals.note_spilled(spilled.file_bytes());
            *state = State::Spilled(spilled);
        }
        Ok(())
    }

    fn note_restored(&self, bytes: usize) {
        self.owner.note_restored(bytes);
        self.store.totals.note_restored(bytes);
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.store.resident.lock().remove(&self.id);
    }
}

/// Keeps one block of the store alive. Cloning shares the block; the last drop frees it.
#[derive(Clone)]
pub struct BlockHandle(Arc<Stored>);

impl BlockHandle {
    /// Rows and bytes, without touching the block.
    pub fn metadata(&self) -> BlockMetadata {
        self.0.metadata
    }

    /// The block, read back from its file when it was spilled. The store's own copy stays where it is.
    pub fn get(&self) -> Result<Block> {
        let spilled_bytes;
        let block = match &*self.0.state.lock() {
            State::Resident(block) => return Ok(block.clone()),
            State::Spilled(spilled) => {
                spilled_bytes = spilled.file_bytes();
                spilled.read().while_doing(|| "restoring a spilled block")?
            }
        };
        self.0.note_restored(spilled_bytes);
        self.0.store.claim(block.batches());
        Ok(block)
    }

    /// One batch of the block; of a spilled block only this batch is read back.
    pub fn get_batch(&self, index: usize) -> Result<RecordBatch> {
        let spilled_bytes;
        let batch = match &*self.0.state.lock() {
            State::Resident(block) => return Ok(block.batches()[index].clone()),
            State::Spilled(spilled) => {
                spilled_bytes = spilled.batch_bytes(index);
                spilled.read_batch(index).while_doing(|| "restoring a spilled block")?
            }
        };
        self.0.note_restored(spilled_bytes);
        self.0.store.claim(std::slice::from_ref(&batch));
        Ok(batch)
    }
}

impl fmt::Debug for BlockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHandle({:?})", self.0.metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringArray};
    use datafusion::arrow::datatypes::Int32Type;

    fn store(limit: usize) -> Arc<BlockStore> {
        let disk = Arc::new(DiskManager::builder().build().unwrap());
        Arc::new(BlockStore::new(Arc::new(Budget::new(limit)), disk, SpillCompression::Lz4))
    }

    fn batch(rows: i64) -> RecordBatch {
        let numbers = Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
        let words = Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("row {i}")))) as ArrayRef;
        RecordBatch::try_from_iter([("n", numbers), ("s", words)]).unwrap()
    }

    #[test]
    fn shared_buffers_are_counted_once_and_freed_with_the_last_slice() {
        let store = store(usize::MAX);
        let whole = batch(10_000);
        let slices: Vec<_> = (0..10).map(|i| whole.slice(i * 1000, 1000)).collect();
        let usage = Arc::default();
        let handle = store.put(Block::new(whole.schema(), slices), &usage).unwrap();
        let once = store.budget().blocks();
        assert!(once < whole.get_array_memory_size() * 11 / 10, "{once}");
        let second = store.put(Block::new(whole.schema(), vec![whole.slice(5, 5)]), &usage).unwrap();
        assert_eq!(store.budget().blocks(), once);
        drop((handle, whole));
        assert_eq!(store.budget().blocks(), once, "the second block still holds the buffers");
        drop(second);
        assert_eq!(store.budget().blocks(), 0);
    }

    #[test]
    fn spilled_batches_come_back_one_by_one() {
        let store = store(0);
        let whole = batch(100);
        let pieces = vec![whole.slice(0, 10), whole.slice(10, 0), whole.slice(10, 90)];
        let handle = store.put(Block::new(whole.schema(), pieces.clone()), &Arc::default()).unwrap();
        assert_eq!(store.totals().spilled_blocks(), 1);
        for (i, piece) in pieces.iter().enumerate() {
            assert_eq!(&handle.get_batch(i).unwrap(), piece);
        }
        assert_eq!(handle.get().unwrap().batches(), pieces);
    }

    #[test]
    fn dictionaries_may_differ_between_batches() {
        let store = store(0);
        let of = |words: [&str; 2]| {
            let column: DictionaryArray<Int32Type> = words.into_iter().collect();
            RecordBatch::try_from_iter([("d", Arc::new(column) as ArrayRef)]).unwrap()
        };
        let batches = vec![of(["a", "b"]), of(["x", "y"])];
        let handle = store.put(Block::new(batches[0].schema(), batches.clone()), &Arc::default()).unwrap();
        assert_eq!(handle.get().unwrap().batches(), batches);
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_what_was_being_done() {
        let disk = DiskManager::builder().with_max_temp_directory_size(1000).build().unwrap();
        let store = Arc::new(BlockStore::new(Arc::new(Budget::new(0)), Arc::new(disk), SpillCompression::None));
        let error = store.put(Block::new(batch(1).schema(), vec![batch(10_000)]), &Arc::default()).unwrap_err();
        assert!(error.to_string().contains("while spilling a block of 10000 rows"), "{error}");
    }
}
