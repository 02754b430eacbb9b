//! The ends of a plan that keep rows: in files, one per block, in sinks of applications, or in the
//! block store.

mod block_files;
mod clock;
mod each_block;
mod exec;
mod sink;
mod store_rows;

pub(crate) use clock::write_time;
pub(crate) use exec::WriteExec;
pub(crate) use sink::SinkExec;
pub(crate) use store_rows::{BlockTarget, StoreExec};
