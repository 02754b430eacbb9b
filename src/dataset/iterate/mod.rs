//! Consuming a dataset batch by batch, row by row or block by block, and going on where another iterator has ended.
//!
//! ```text
//! plan ──rows with marks──> cutter: batches ──Ahead──> Batches: token = mark of the last batch handed out
//!                                             (prefetch_batches)
//! ```

mod ahead;
mod batches;
mod blocks;
mod clock;
mod epochs;
#[cfg(feature = "ffi")]
mod ffi;
mod options;
mod rows;
mod run;
mod token;
mod windows;

pub use batches::{Batches, BlockingBatches};
pub use clock::IterStats;
pub use epochs::{Epoch, Epochs};
pub use options::IterOptions;
pub(super) use token::{Apart, Origin, Position};
