//! The formats of files that can be read: a file for each, with its options, its table function, and how it is read;
//! and a line in the list here. To add one, copy `json.rs`.

mod csv;
mod format;
mod json;
mod parquet;
mod text;

pub use csv::ReadCsvOptions;
pub(crate) use format::{Files, ReadFormat, ReadOptions, Scan};
pub use json::ReadJsonOptions;
pub use parquet::ReadParquetOptions;

use super::files::Format;

/// All of them, in the order of the reference.
pub(crate) fn formats() -> [Format; 3] {
    [Format::of::<ReadParquetOptions>(), Format::of::<ReadCsvOptions>(), Format::of::<ReadJsonOptions>()]
}
