//! The list of the formats that DataFusion has, too.

use super::known::KnownFormat;
use super::{csv, json, parquet};

/// All of them.
pub(crate) fn known_formats() -> [KnownFormat; 3] {
    [parquet::known(), csv::known(), json::known()]
}
