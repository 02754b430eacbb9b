//! The formats that datasets are written in: a file for each, with how its rows are encoded. To add one, copy `json.rs`
//! and add a line to `all.rs`.

mod all;
mod csv;
mod format;
mod json;
mod known;
mod parquet;

pub(crate) use all::known_formats;
pub(crate) use csv::CSV_EXTENSIONS;
pub use format::{EncodeRows, WriteFormat};
pub(crate) use json::JSON_EXTENSIONS;
pub(crate) use known::KnownFormat;
pub(crate) use parquet::PARQUET_EXTENSIONS;
