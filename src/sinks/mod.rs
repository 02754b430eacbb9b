//! Writing datasets: one file per block, staged and then committed, so that a failure leaves nothing behind.

mod dictionaries;
mod file_writer;
mod local_file;
mod partitions;
mod save_mode;
mod staging;

pub(crate) use file_writer::{FileWriter, LocalParquet, Written};
pub(crate) use partitions::{HIVE_NULL, PartitionColumns};
pub use save_mode::SaveMode;
pub(crate) use staging::{Staged, Staging, Target, extensions_of, is_visible};
