//! Counts each physical buffer of stored blocks once, by its address.

use datafusion::arrow::array::{Array, ArrayData, RecordBatch, downcast_primitive_array};
use datafusion::arrow::buffer::Buffer;
use datafusion::common::HashMap;
use datafusion::common::hash_map::Entry;
use parking_lot::Mutex;

use crate::store::Budget;
use crate::store::memory::MemoryUse;

/// Bytes that a buffer takes beside its own, for each array that it belongs to.
const BESIDE_BUFFER_BYTES: usize = 256;

/// What a block takes in memory.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Its distinct physical buffers: address, and bytes that each of them takes.
    distinct: Vec<(usize, usize)>,
    /// Bytes beside buffers, which belong to this block alone.
    beside: usize,
}

impl Buffers {
    /// The buffers that hold these batches, whole even where a batch is a slice of them.
    pub(crate) fn of(batches: &[RecordBatch]) -> Self {
        let mut found = Vec::new();
        for column in batches.iter().flat_map(RecordBatch::columns) {
            collect(column.as_ref(), &mut found);
        }
        let beside = BESIDE_BUFFER_BYTES * found.len();
        // Of parts that begin at the same address the longest.
        found.sort_unstable_by_key(|(address, bytes)| (*address, std::cmp::Reverse(*bytes)));
        found.dedup_by_key(|(address, _)| *address);
        Self { distinct: found, beside }
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.beside + self.distinct.iter().map(|(_, bytes)| bytes).sum::<usize>()
    }
}

fn collect(array: &dyn Array, found: &mut Vec<(usize, usize)>) {
    downcast_primitive_array!(
        array => {
            add(array.values().inner(), found);
            if let Some(nulls) = array.nulls() {
                add(nulls.buffer(), found);
            }
        },
        _ => collect_data(&array.to_data(), found)
    );
}

fn collect_data(data: &ArrayData, found: &mut Vec<(usize, usize)>) {
    data.buffers().iter().for_each(|buffer| add(buffer, found));
    if let Some(nulls) = data.nulls() {
        add(nulls.buffer(), found);
    }
    for child in data.child_data() {
        collect_data(child, found);
    }
}

fn add(buffer: &Buffer, found: &mut Vec<(usize, usize)>) {
    if buffer.capacity() > 0 {
        found.push((buffer.data_ptr().as_ptr() as usize, allocated(buffer.capacity())));
    }
}

/// What an allocator takes for so many bytes: allocators have four sizes between a power of two and the next. On the
/// mean that is a tenth more, of gigabytes of blocks as much as all else that a process has beside them.
fn allocated(bytes: usize) -> usize {
    match bytes.checked_sub(1).and_then(usize::checked_ilog2) {
        Some(log) if log >= 2 => bytes.next_multiple_of(1 << (log - 2)),
        _ => bytes,
    }
}

/// A buffer that blocks hold.
#[derive(Debug, Default)]
struct HeldBuffer {
    blocks: usize,
    /// What is counted for it. Parts of the pages of a file can begin at the same address and differ in length.
    bytes: usize,
}

/// Which buffers are held, by address. A buffer cannot be freed, and its address not be used again, while it is counted
/// here: the block that it is counted for holds it.
#[derive(Debug, Default)]
pub(crate) struct BufferTable(Mutex<HashMap<usize, HeldBuffer>>);

impl BufferTable {
    /// Counts the buffers that are new here, all or none. Otherwise returns how many bytes that takes.
    pub(crate) fn try_add(&self, buffers: &Buffers, budget: &Budget) -> Result<(), usize> {
        let mut held = self.0.lock();
        let counted = |address: &usize| held.get(address).map_or(0, |buffer| buffer.bytes);
        let new = buffers.distinct.iter().map(|(address, bytes)| bytes.saturating_sub(counted(address)));
        let bytes = buffers.beside + new.sum::<usize>();
        if !budget.try_take(MemoryUse::Blocks, bytes) {
            return Err(bytes);
        }
        for (address, bytes) in &buffers.distinct {
            let buffer = held.entry(*address).or_default();
            buffer.blocks += 1;
            buffer.bytes = buffer.bytes.max(*bytes);
        }
        Ok(())
    }

    /// One holder less for each of them. Returns the bytes that nobody holds any more.
    pub(crate) fn remove(&self, buffers: &Buffers, budget: &Budget) -> usize {
        let mut held = self.0.lock();
        let mut freed = buffers.beside;
        for (address, _) in &buffers.distinct {
            if let Entry::Occupied(mut entry) = held.entry(*address) {
                entry.get_mut().blocks -= 1;
                if entry.get().blocks == 0 {
                    freed += entry.remove().bytes;
                }
            }
        }
        budget.give_back(MemoryUse::Blocks, freed);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_have_four_sizes_for_each_power_of_two() {
        let sizes =
            [(0, 0), (1, 1), (64, 64), (65, 80), (80, 80), (81, 96), (4096, 4096), (4097, 5120), (10_000, 10_240)];
        for (bytes, taken) in sizes {
            assert_eq!(allocated(bytes), taken, "{bytes}");
        }
    }

    #[test]
    fn parts_that_begin_at_the_same_address_are_given_back_as_they_were_counted() {
        let (table, budget) = (BufferTable::default(), Budget::new(1000));
        let [short, long] = [10, 300].map(|bytes| Buffers { distinct: vec![(4096, bytes)], beside: 1 });
        table.try_add(&short, &budget).unwrap();
        table.try_add(&long, &budget).unwrap();
        assert_eq!(budget.blocks(), 302);
        assert_eq!(table.remove(&long, &budget), 1);
        assert_eq!(table.remove(&short, &budget), 301);
        assert_eq!(budget.used(), 0);
    }
}
