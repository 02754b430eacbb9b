//! `blockyard.tasks`.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, id, number, text};
use super::table::{Sources, Table};
use crate::block::TaskId;
use crate::observability::report::stages;
use crate::physical::TaskRecord;

/// Tasks of the queries that run now, and the last that ended.
pub(super) struct Tasks;

pub(super) struct Row {
    query: u64,
    operator: String,
    /// Of a task that runs.
    task: Option<TaskId>,
    wall: Duration,
    record: TaskRecord,
}

impl Row {
    /// What is known of a task when it has ended.
    fn of_ended(&self, value: usize) -> Option<u64> {
        self.task.is_none().then_some(value as u64)
    }
}

impl Table for Tasks {
    const NAME: &'static str = "tasks";
    const ABOUT: &'static str = "Tasks of the queries that run now, and the last 1,000 of each stage that ended.";
    type Row = Row;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for execution in sources.observers.running() {
            for (operator, stage) in stages(&execution) {
                let (query, name) = (execution.query(), || operator.clone());
                for (task, since) in stage.running() {
                    let (task, record) = (Some(task), TaskRecord::default());
                    rows.push(Row { query, operator: name(), task, wall: since.elapsed(), record });
                }
                for record in stage.last_ended() {
                    rows.push(Row { query, operator: name(), task: None, wall: record.wall, record });
                }
            }
        }
        Ok(rows)
    }

    fn columns() -> Vec<Column<Row>> {
        let state = |row: &Row| if row.task.is_some() { "running" } else { "ended" }.to_owned();
        vec![
            number("query", "Number of the query.", |row| id(row.query)),
            text("operator", "Names of the operators of its stage.", |row| row.operator.clone()),
            text("task", "Its place in the order of the dataset, while it runs.", |row| {
                row.task.as_ref().map_or(String::new(), ToString::to_string)
            }),
            text("state", "`running` or `ended`.", state),
            number(
                "wall_ms",
                "For how long it runs, or ran, in milliseconds.",
                |row| Some(row.wall.as_millis() as u64),
            ),
            number("cpu_ms", "For how long it was on a CPU, in milliseconds.", |row| {
                row.of_ended(row.record.cpu.as_millis() as usize)
            }),
            number("num_rows", "Rows that it gave.", |row| row.of_ended(row.record.output.num_rows)),
            number("size_bytes", "Bytes of these.", |row| row.of_ended(row.record.output.size_bytes)),
        ]
    }
}
