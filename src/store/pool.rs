//! DataFusion's memory pool on the shared budget: an operator that asks first pushes blocks out, and is refused only
//! when there is nothing left to push out or it has had its fair share.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use parking_lot::Mutex;

use super::{BlockStore, Budget};
use crate::config::ByteSize;

/// A consumer that can spill always gets this much, when the budget has it: one batch must fit or nothing can start.
const SPILLABLE_FLOOR: usize = 2 << 20;

/// The pool that a session's operators reserve from.
#[derive(Debug)]
pub struct SharedMemoryPool {
    store: Arc<BlockStore>,
    shares: Mutex<Shares>,
}

#[derive(Debug, Default)]
struct Shares {
    spillable_consumers: usize,
    /// Bytes held by consumers that cannot spill.
    unspillable: usize,
}

impl SharedMemoryPool {
    /// A pool which shares the budget of `store`.
    pub fn new(store: Arc<BlockStore>) -> Self {
        Self { store, shares: Mutex::default() }
    }

    fn budget(&self) -> &Budget {
        self.store.budget()
    }

    fn refuse(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionError {
        let text = format!(
            "{} needs {} more on top of the {} that it holds, but memory is {}. Raise blockyard.memory_limit, or lower \
             datafusion.execution.target_partitions so that fewer operators share it",
            reservation.consumer().name(),
            ByteSize(additional),
            ByteSize(reservation.size()),
            self.budget()
        );
        // On this kind of error a nested-loop join goes on in a way that can return wrong rows (DataFusion 55).
        match reservation.consumer().name().starts_with("NestedLoopJoinLoad") {
            true => DataFusionError::Execution(text + "; a nested-loop join cannot spill"),
            false => DataFusionError::ResourcesExhausted(text),
        }
    }
}

impl MemoryPool for SharedMemoryPool {
    fn name(&self) -> &str {
        "blockyard"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() {
            self.shares.lock().spillable_consumers += 1;
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if consumer.can_spill() {
            let mut shares = self.shares.lock();
            shares.spillable_consumers = shares.spillable_consumers.saturating_sub(1);
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        // Nobody may refuse here: make room as far as that goes, and let the peak show the rest.
        let _made_room = self.store.make_room(self.budget().excess(additional));
        self.shares.lock().add(reservation, additional);
        self.budget().grow_execution(additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.shares.lock().remove(reservation, shrink);
        self.budget().shrink_execution(shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if additional == 0 {
            return Ok(());
        }
        // Blocks leave before the lock is taken: writing them may take long.
        // Meanwhile others take memory too, so it may take several turns.
        while self.store.make_room(self.budget().excess(additional))? {}
        let mut shares = self.shares.lock();
        let wanted = reservation.size() + additional;
        // A repartition that is refused writes batches to files one by one, which is slow and prone to hang.
        let shares_fairly =
            reservation.consumer().can_spill() && !reservation.consumer().name().starts_with("Repartition");
        let over_share = shares_fairly && wanted > shares.fair(self.budget().limit());
        if over_share || self.budget().excess(additional) > 0 {
            return Err(self.refuse(reservation, additional));
        }
        shares.add(reservation, additional);
        self.budget().grow_execution(additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.budget().execution()
    }

    fn memory_limit(&self) -> MemoryLimit {
        match self.budget().limit() {
            usize::MAX => MemoryLimit::Infinite,
            bytes => MemoryLimit::Finite(bytes),
        }
    }
}

impl Shares {
    /// What each consumer that can spill may hold.
    fn fair(&self, limit: usize) -> usize {
        let spillable = limit.saturating_sub(self.unspillable);
        (spillable / self.spillable_consumers.max(1)).max(SPILLABLE_FLOOR)
    }

    fn add(&mut self, reservation: &MemoryReservation, bytes: usize) {
        if !reservation.consumer().can_spill() {
            self.unspillable += bytes;
        }
    }

    fn remove(&mut self, reservation: &MemoryReservation, bytes: usize) {
        if !reservation.consumer().can_spill() {
            self.unspillable = self.unspillable.saturating_sub(bytes);
        }
    }
}

impl fmt::Display for SharedMemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blockyard({})", self.budget())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::config::SpillCompression;
    use crate::store::StoreUsage;
    use datafusion::arrow::array::{Int64Array, RecordBatch};
    use datafusion::execution::disk_manager::DiskManager;

    fn pool(limit: usize) -> (Arc<BlockStore>, Arc<dyn MemoryPool>) {
        let disk = Arc::new(DiskManager::builder().build().unwrap());
        let store = Arc::new(BlockStore::new(Arc::new(Budget::new(limit)), disk, SpillCompression::None));
        let pool: Arc<dyn MemoryPool> = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
        (store, pool)
    }

    fn block(rows: usize) -> Block {
        let column = Arc::new(Int64Array::from_iter_values(0..rows as i64)) as _;
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        Block::new(batch.schema(), vec![batch])
    }

    #[test]
    fn an_operator_pushes_blocks_out() {
        let (store, pool) = pool(1 << 20);
        let usage = Arc::new(StoreUsage::default());
        let handles: Vec<_> = (0..8).map(|_| store.put(block(16_000), &usage).unwrap()).collect();
        assert!(store.budget().used() <= 1 << 20);
        let reservation = MemoryConsumer::new("sort").register(&pool);
        reservation.try_grow(900 << 10).unwrap();
        assert!(store.budget().used() <= 1 << 20, "{}", store.budget());
        assert!(usage.spilled_blocks() >= 7);
        for handle in handles {
            assert_eq!(handle.get().unwrap().num_rows(), 16_000);
        }
        drop(reservation);
        assert_eq!(store.budget().execution(), 0);
        assert_eq!(store.budget().blocks(), 0);
    }

    #[test]
    fn growing_by_nothing_succeeds_even_over_the_limit() {
        let (_store, pool) = pool(100);
        let reservation = MemoryConsumer::new("merge").register(&pool);
        reservation.grow(200);
        reservation.try_grow(0).unwrap();
        let error = reservation.try_grow(1).unwrap_err().to_string();
        assert!(error.contains("merge needs 1B more on top of the 200B"), "{error}");
    }
}
