//! Counts each physical buffer of stored blocks once, by its address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use datafusion::arrow::array::{Array, ArrayData, RecordBatch};
use datafusion::arrow::buffer::Buffer;
use parking_lot::Mutex;

use super::Budget;
use super::budget::Use;

/// The distinct physical buffers of a block: address and capacity.
#[derive(Debug, Default)]
pub(super) struct Buffers(Vec<(usize, usize)>);

impl Buffers {
    /// The buffers that hold these batches, whole even where a batch is a slice of them.
    pub(super) fn of(batches: &[RecordBatch]) -> Self {
        let mut found = Vec::new();
        for column in batches.iter().flat_map(RecordBatch::columns) {
            collect(&column.to_data(), &mut found);
        }
        found.sort_unstable();
        found.dedup_by_key(|(address, _)| *address);
        Self(found)
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn collect(data: &ArrayData, found: &mut Vec<(usize, usize)>) {
    let mut add = |buffer: &Buffer| {
        if buffer.capacity() > 0 {
            found.push((buffer.data_ptr().as_ptr() as usize, buffer.capacity()));
        }
    };
    data.buffers().iter().for_each(&mut add);
    if let Some(nulls) = data.nulls() {
        add(nulls.buffer());
    }
    for child in data.child_data() {
        collect(child, found);
    }
}

/// Which buffers are held, by how many blocks. A buffer cannot be freed, and its address not be used again, while it is
/// counted here: the block that it is counted for holds it.
#[derive(Debug, Default)]
pub(super) struct BufferTable(Mutex<HashMap<usize, usize>>);

impl BufferTable {
    /// Counts the buffers that are new here, all or none. Otherwise returns how many bytes that takes.
    pub(super) fn try_add(&self, buffers: &Buffers, budget: &Budget) -> Result<(), usize> {
        let mut holders = self.0.lock();
        let new = buffers.0.iter().filter(|(address, _)| !holders.contains_key(address));
        let bytes = new.map(|(_, bytes)| bytes).sum();
        if !budget.try_take(Use::Blocks, bytes) {
            return Err(bytes);
        }
        for (address, _) in &buffers.0 {
            *holders.entry(*address).or_default() += 1;
        }
        Ok(())
    }

    /// One holder less for each of them. Returns the bytes that nobody holds any more.
    pub(super) fn remove(&self, buffers: &Buffers, budget: &Budget) -> usize {
        let mut holders = self.0.lock();
        let mut freed = 0;
        for (address, bytes) in &buffers.0 {
            if let Entry::Occupied(mut entry) = holders.entry(*address) {
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                    freed += bytes;
                }
            }
        }
        budget.give_back(Use::Blocks, freed);
        freed
    }
}
