//! Splits for other processes: `blockyard serve`, [`SplitServer`] and [`SplitClient`].
//!
//! ```text
//! SplitIterator 0 ──> session 0 ──lines of JSON, Arrow IPC──> SplitClient, or any Arrow library
//! SplitIterator 1 ──> session 1 ──..
//! ```
//!
//! A connection holds the iterator of one consumer, and lets go of it when it closes: what that means for the others is
//! decided where all splits are, in `dataset/streaming_split/`. `docs/reference/split_protocol.md` is what is said.

mod client;
mod lines;
mod server;
mod session;

pub use client::{SplitClient, SplitClientOptions};
pub use server::SplitServer;
