//! The ends of a plan that keep rows: in files, one per block, in sinks of applications, or in the
//! block store.

mod block_files;
mod clock;
mod each_block;
mod exec;
mod files;
mod sink;
mod store;
mod store_rows;
mod tasks;

pub(crate) use clock::write_time;
pub(crate) use exec::WriteExec;
pub(crate) use sink::SinkExec;
pub(crate) use store_rows::{BlockTarget, StoreExec};
pub(crate) use tasks::{WritePlace, WriteTasksExec, Writing};
