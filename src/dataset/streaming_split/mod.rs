//! One dataset for several consumers at once: Ray's `streaming_split`.
//!
//! ```text
//!                         turn 0          turn 1
//! plan ── dealer ──> rows | 0 | 1 | 2 | | 0 | 1 | 2 | ..     part k of a turn is for consumer k
//!                           │   │   └──────> queue 2 ──> SplitIterator 2
//!                           │   └──────────> queue 1 ──> SplitIterator 1
//!                           └──────────────> queue 0 ──> SplitIterator 0
//! ```
//!
//! The dealer runs the dataset once for each epoch, and waits when the queue of one consumer is full. Queues are blocks
//! in the store, so that they leave memory when there is no room. By demand there is one queue for all. What everybody
//! knows of everybody is in `table.rs`, which has neither threads nor time, and is tried with random schedules in
//! `simulation.rs`. Nothing here knows whether consumers are in this process.

mod dealer;
mod iterator;
mod options;
mod seat;
mod shared;
#[cfg(test)]
mod simulation;
mod split;
mod start;
mod table;

pub use iterator::SplitIterator;
pub use options::{Deal, OnLost, SplitBarrier, SplitOptions};
pub(crate) use split::Split;
