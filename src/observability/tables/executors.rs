//! `blockyard.executors`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, number, text};
use super::table::{Sources, Table};
use crate::error::one_message;
use crate::physical::{ExecutorStatus, executor_statuses};

/// Processes that run stages.
pub(super) struct Executors;

/// One of them, by its address.
type Row = (String, Result<ExecutorStatus>);

impl Table for Executors {
    const NAME: &'static str = "executors";
    const ABOUT: &'static str = "Every executor of the session, asked when the table is read.";
    type Row = Row;

    async fn rows(_sources: Sources, context: Arc<TaskContext>) -> Result<Vec<Row>> {
        executor_statuses(context.session_config()).await
    }

    fn columns() -> Vec<Column<Row>> {
        fn of(row: &Row, value: impl Fn(&ExecutorStatus) -> usize) -> Option<u64> {
            row.1.as_ref().ok().map(|status| value(status) as u64)
        }
        let version = |row: &Row| row.1.as_ref().map_or_else(|_| String::new(), |status| status.version.clone());
        let error = |row: &Row| row.1.as_ref().err().map(one_message).unwrap_or_default();
        vec![
            text("address", "Where it is.", |row| row.0.clone()),
            text("version", "The version of Blockyard that it is of.", version),
            number("threads", "Tasks that it runs at once.", |row| of(row, |status| status.threads)),
            number("queries", "Queries whose sessions are connected.", |row| of(row, |status| status.queries)),
            number("units", "Units of tasks that run now.", |row| of(row, |status| status.units)),
            number("memory_limit", "Bytes that blocks and operators may have.", |row| {
                of(row, |status| status.memory_limit)
            }),
            number("memory_used", "Bytes that they have now.", |row| of(row, |status| status.memory_used)),
            number("spilled_bytes", "Bytes that it has written to disk since it was started.", |row| {
                of(row, |status| status.spilled_bytes)
            }),
            text("error", "Why it says nothing, if it does not.", error),
        ]
    }
}
