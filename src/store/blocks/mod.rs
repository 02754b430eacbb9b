//! Blocks: their handles, where each of them is, and which one leaves memory next.

mod block_store;
mod buffers;
mod candidates;
mod diverted;
mod handle;
mod state;

pub use block_store::BlockStore;
pub(crate) use block_store::WorkingSet;
pub use handle::{BlockHandle, BlockInfo, NextUse, PinnedBlock};
