//! The formats that datasets are written in: a file for each, with how its rows are encoded. To add one, copy `json.rs`
//! and add a line to the list here.

mod csv;
mod format;
mod json;
mod known;
mod parquet;

pub(crate) use csv::CSV_EXTENSIONS;
pub use format::{EncodeRows, WriteFormat};
pub(crate) use json::JSON_EXTENSIONS;
pub(crate) use known::KnownFormat;
pub(crate) use parquet::{PARQUET_EXTENSIONS, parquet};

/// All of them: DataFusion has these too.
pub(crate) fn known_formats() -> [KnownFormat; 3] {
    [parquet::known(), csv::known(), json::known()]
}
