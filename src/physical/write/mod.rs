//! The ends of a plan that keep rows: in files, one per block, or in the block store.

mod block_files;
mod clock;
mod exec;
mod store_rows;

pub(crate) use clock::write_time;
pub(crate) use exec::WriteExec;
pub(crate) use store_rows::{BlockTarget, StoreExec};
