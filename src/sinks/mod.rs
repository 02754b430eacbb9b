//! Writing datasets: one file per block, staged and then committed, so that a failure leaves nothing behind.

mod dictionaries;
mod file_writer;
mod local_file;
mod save_mode;
mod staging;

pub(crate) use file_writer::{FileWriter, LocalParquet, Written};
pub use save_mode::SaveMode;
pub(crate) use staging::{Staging, Target, is_visible};
