//! `blockyard.iterators`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, number, text};
use super::table::{Sources, Table};
use crate::observability::IteratorStatus;

/// Consumers of iterators and splits.
pub(super) struct Iterators;

impl Table for Iterators {
    const NAME: &'static str = "iterators";
    const ABOUT: &'static str = "Every consumer of an iterator or a split that is open.";
    type Row = IteratorStatus;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<IteratorStatus>> {
        Ok(sources.observers.iterators.statuses())
    }

    fn columns() -> Vec<Column<IteratorStatus>> {
        vec![
            text("name", "Which iterator or split it is, counted in the session.", |row| row.name.clone()),
            number("consumer", "The number of the consumer; 0 for an iterator.", |row| Some(row.consumer)),
            text(
                "state",
                "`works`, `waits`, `arrived` before an epoch, `away` while it may come back, or `gone`.",
                |row| row.state.to_owned(),
            ),
            text("waits_for", "Whom it waits for: the dataset, or the numbers of consumers.", |row| {
                row.waits_for.clone()
            }),
            number("epoch", "The epoch in which it is.", |row| row.epoch),
            number("window", "The window of a pipeline in which it is.", |row| row.window),
            number("rows", "Rows that it got.", |row| Some(row.rows)),
            number("waited_ms", "For how long it has waited, in milliseconds.", |row| {
                Some(row.waited.as_millis() as u64)
            }),
            number("user_ms", "For how long it did something else, in milliseconds.", |row| {
                Some(row.user.as_millis() as u64)
            }),
            number("buffered_bytes", "Bytes that lie ready for it.", |row| Some(row.buffered_bytes)),
            text("token", "The resume token behind the last batch that it got, if there is one.", |row| {
                row.token.clone()
            }),
        ]
    }
}
