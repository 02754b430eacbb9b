//! Brings the partitions of a plan together in the order of the dataset.
//!
//! ```text
//! partition 0:  task 0 ─── task 2 ──┐
//!                                   ├── 0 1 2 3 ...   the smallest id first
//! partition 1:  task 1 ─── task 3 ──┘
//! ```
//!
//! Each partition has a driver which runs ahead into the store, up to a bounded number of bytes. The partition with the
//! smallest id is always drained, so a driver that waits for room never holds up the one that everybody waits for.
//! Plans without an order (a join or aggregate of DataFusion) are gathered as rows come.
//!
//! Where only the first rows are wanted, each partition begins one task, and others only as long as rows lack.

mod blocks;
mod exec;
mod in_order;

pub(crate) use blocks::gather_blocks;
pub(crate) use exec::GatherExec;
pub(crate) use in_order::gather;
pub(in crate::physical) use in_order::{PIECE_BYTES, blocks_in_order, first_blocks_in_order};
