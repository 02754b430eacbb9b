//! The formats of files that can be read: a file for each, with its options, its table function, and how it is read;
//! and a line in the list here. To add one, copy `json.rs`.

mod binary;
mod csv;
mod decimals;
mod format;
mod json;
mod lines;
mod parquet;
mod text;
mod tolerant;

pub use binary::ReadBinaryFilesOptions;
pub use csv::ReadCsvOptions;
pub(crate) use format::{Files, ReadFormat, ReadOptions, Scan};
pub use json::ReadJsonOptions;
pub use lines::{ReadTextOptions, TextEncoding};
pub use parquet::ReadParquetOptions;

use super::files::Format;

/// All of them, in the order of the reference.
pub(crate) fn formats() -> [Format; 5] {
    [
        Format::of::<ReadParquetOptions>(),
        Format::of::<ReadCsvOptions>(),
        Format::of::<ReadJsonOptions>(),
        Format::of::<ReadTextOptions>(),
        Format::of::<ReadBinaryFilesOptions>(),
    ]
}
