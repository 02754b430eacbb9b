//! The formats of files that can be read: a file for each, with its options, its table function, and how it is read.
//! To add one, copy `json.rs` and add a line to `all.rs`.

mod all;
mod csv;
mod format;
mod json;
mod parquet;
mod text;

pub(crate) use all::{format_of_path, read_functions};
pub use csv::ReadCsvOptions;
pub(crate) use format::{Files, ReadFormat, ReadOptions, Scan};
pub use json::ReadJsonOptions;
pub use parquet::ReadParquetOptions;
