//! The block store: the only place that keeps batches alive beyond one poll, under one limit that it shares with
//! DataFusion's operators.
//!
//! # The model
//!
//! ```text
//!            limit (blockyard.memory_limit)
//! ├──────────────── execution ───────────────┼───────── blocks ─────────┼─ free ─┤
//!   reservations of DataFusion's operators     buffers of stored blocks,
//!   (fair shares for those that can spill)     counted once by address
//! ```
//!
//! A block is **resident** (its batches are held here) or **spilled** (they are in a file of the spill directory). A put
//! that goes over the limit, or an operator that asks for memory, moves blocks from resident to spilled, newest first:
//! all-to-all consumers read blocks oldest first, so the newest is the one whose next use is farthest away. A block
//! leaves both when its last [`BlockHandle`] drops.
//!
//! A buffer is counted from the first put that holds it until its last reference anywhere drops, however it was sliced
//! and shared in between. What a reader still holds of an evicted block therefore stays counted.
//!
//! # Locks
//!
//! `BlockStore::resident` (which blocks could leave) is taken before a block's own `state`, and never held while a file
//! is written. Dropping a batch takes no lock: it only lowers an atomic, so a drop inside the memory pool is safe.

mod block_store;
mod budget;
mod pool;
mod spill;
mod usage;

pub use block_store::{BlockHandle, BlockStore};
pub use budget::Budget;
pub use pool::SharedMemoryPool;
pub use usage::StoreUsage;
