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
//! in the store, so that they leave memory when there is no room. What everybody knows of everybody is in `table.rs`,
//! which has neither threads nor time.

mod dealer;
mod iterator;
mod options;
mod table;

pub use iterator::SplitIterator;
pub use options::{SplitBarrier, SplitOptions};
