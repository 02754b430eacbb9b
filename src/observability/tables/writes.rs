//! `blockyard.writes`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, id, number, text};
use super::table::{Sources, Table};
use crate::sinks::WrittenFile;

/// Files that were written.
pub(super) struct Writes;

impl Table for Writes {
    const NAME: &'static str = "writes";
    const ABOUT: &'static str = "The files that queries of the session have written, the last 10,000 of them.";
    type Row = (u64, WrittenFile);

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<Self::Row>> {
        Ok(sources.observers.writes())
    }

    fn columns() -> Vec<Column<Self::Row>> {
        vec![
            number("query", "Number of the query.", |(query, _)| id(*query)),
            text("path", "Path or address of the file.", |(_, file)| file.path.clone()),
            number("rows", "Its rows.", |(_, file)| Some(file.rows as u64)),
            number("bytes", "Its bytes.", |(_, file)| Some(file.bytes)),
        ]
    }
}
