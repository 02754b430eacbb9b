//! `blockyard.memory`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, id, number, text};
use super::table::{Sources, Table};

/// Who holds how much.
pub(super) struct Memory;

pub(super) struct Row {
    query: u64,
    operator: String,
    kind: &'static str,
    bytes: usize,
    peak: Option<usize>,
}

impl Table for Memory {
    const NAME: &'static str = "memory";
    const ABOUT: &'static str = "Who holds memory, and what is free of the limit.";
    type Row = Row;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for holder in sources.pool.holders() {
            let (query, operator, bytes) = (holder.query, holder.operator, holder.bytes);
            rows.push(Row { query, operator, kind: "operator", bytes, peak: Some(holder.peak_bytes) });
        }
        for owner in sources.store.owners() {
            for (kind, bytes) in [("blocks", owner.block_bytes()), ("tasks", owner.task_bytes())] {
                if bytes > 0 {
                    let operator = owner.operator().to_owned();
                    rows.push(Row { query: owner.query(), operator, kind, bytes, peak: None });
                }
            }
        }
        let budget = sources.store.budget();
        let free = budget.limit().saturating_sub(budget.used());
        rows.push(Row { query: 0, operator: String::new(), kind: "free", bytes: free, peak: None });
        Ok(rows)
    }

    fn columns() -> Vec<Column<Row>> {
        vec![
            number("query", "Number of the query.", |row| id(row.query)),
            text("operator", "Name of the operator.", |row| row.operator.clone()),
            text("kind", "`operator` (a reservation of DataFusion's), `blocks`, `tasks` or `free`.", |row| {
                row.kind.to_owned()
            }),
            number("bytes", "Bytes that it has now.", |row| Some(row.bytes as u64)),
            number("peak_bytes", "The most bytes that it had, of reservations.", |row| {
                row.peak.map(|peak| peak as u64)
            }),
        ]
    }
}
