//! `blockyard.spills`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, number, text};
use super::table::{Sources, Table};
use crate::store::SpillFileInfo;

/// Files in the spill directories.
pub(super) struct Spills;

impl Table for Spills {
    const NAME: &'static str = "spills";
    const ABOUT: &'static str = "Every file in the spill directories.";
    type Row = SpillFileInfo;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<SpillFileInfo>> {
        Ok(sources.store.directories().files())
    }

    fn columns() -> Vec<Column<SpillFileInfo>> {
        vec![
            text("file", "Its path.", |file| file.path.display().to_string()),
            text("what", "`blocks`, or what DataFusion says that its operator spills.", |file| file.what.clone()),
            number("bytes", "Bytes on disk.", |file| Some(file.bytes)),
        ]
    }
}
