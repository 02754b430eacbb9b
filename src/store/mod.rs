//! The block store: the only place that keeps batches alive beyond one poll, under one limit that it shares with
//! DataFusion's operators and with running tasks.
//!
//! # The model
//!
//! ```text
//!            limit (blockyard.memory_limit)
//! ├─────────── operators ────────────┼─ tasks ─┼────────── blocks ──────────┼─ free ─┤
//!   reservations of DataFusion's      decode,    buffers of stored blocks,
//!   operators, up to 7/8 of the limit encode,    each counted once by its
//!   (shares for those that can spill) buffer     address
//! ```
//!
//! A block is in one of these states:
//!
//! ```text
//!               write ahead, or when room is needed            evict
//! put ──> dirty ───────────────────────────────────> clean ───────────> spilled
//!    in memory only                          in memory and on disk     on disk only
//!                                                      ^                  │
//!                                                      └───── pin ────────┘
//! ```
//!
//! and may be **pinned** in the first two: a pinned block does not leave memory. A put that finds no room even when
//! everything unpinned has left writes its block to disk at once. When memory is used to four fifths, a thread writes
//! blocks ahead of need (`BlockStore::write_behind`), so that a fifth of the limit can be dropped without a wait. The
//! block whose next use is farthest leaves first: what is kept for a dataset before what waits for the end of an
//! all-to-all's input before what a queue hands on, and the newest of its kind first, because consumers read the oldest
//! first. A block leaves memory and disk when its last [`BlockHandle`] drops.
//!
//! Batches of a spilled block are read back one by one and stay with the reader; the block stays on disk.
//!
//! # Locks
//!
//! In this order, and never held while a file is written or read: the pool's consumers; the admissions;
//! `BlockStore::owners`, `BlockStore::candidates` and `BlockStore::blocks` (which never hold the last reference to a
//! block, because its drop takes them); a block's own `residence`; the table of buffers. The budget is atomic. Dropping
//! a batch takes no lock, so a drop inside the memory pool is safe.

mod blocks;
mod memory;
mod spill;

pub(crate) use blocks::WorkingSet;
pub use blocks::{BlockHandle, BlockInfo, BlockStore, NextUse, PinnedBlock};
pub(crate) use memory::{Admission, Entry, Governor, MIN_MERGE_FACTOR, MIN_MERGE_PART, QueryNeeds, QueryPool};
pub use memory::{Allocator, Budget, CacheLevel, Holder, Owner, SharedMemoryPool};
pub use spill::{SpillDirectories, SpillFileInfo};

#[cfg(test)]
pub(crate) mod tests;
