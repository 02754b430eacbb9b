//! `blockyard.queries`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::displayable;

use super::column::{Column, id, number, text};
use super::table::{Sources, Table};
use crate::observability::execution::Execution;
use crate::observability::report::{finished_tasks, stages};

/// Queries that run now.
pub(super) struct Queries;

pub(super) struct Row {
    execution: Execution,
    memory: usize,
}

impl Table for Queries {
    const NAME: &'static str = "queries";
    const ABOUT: &'static str = "Queries of the session that run now.";
    type Row = Row;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<Row>> {
        let (holders, owners) = (sources.pool.holders(), sources.store.owners());
        let row = |execution: Execution| {
            let query = execution.query();
            let operators = holders.iter().filter(|holder| holder.query == query).map(|holder| holder.bytes);
            let blocks = owners.iter().filter(|owner| owner.query() == query);
            let blocks = blocks.map(|owner| owner.block_bytes() + owner.task_bytes());
            Row { memory: operators.chain(blocks).sum(), execution }
        };
        Ok(sources.observers.running().into_iter().map(row).collect())
    }

    fn columns() -> Vec<Column<Row>> {
        let running_tasks = |row: &Row| {
            let running = stages(&row.execution).into_iter().filter(|(name, _)| name != "Queue" && name != "Gather");
            Some(running.map(|(_, stage)| stage.running().len() as u64).sum::<u64>())
        };
        vec![
            number("query", "Number of the query.", |row| id(row.execution.query())),
            text("plan", "Its operators.", |row| displayable(row.execution.plan().as_ref()).indent(false).to_string()),
            number("elapsed_ms", "For how long it runs, in milliseconds.", |row| {
                Some(row.execution.elapsed().as_millis() as u64)
            }),
            number("finished_tasks", "Tasks that have ended.", |row| Some(finished_tasks(&row.execution) as u64)),
            number("running_tasks", "Tasks that run.", running_tasks),
            number("memory_bytes", "Bytes that it holds.", |row| Some(row.memory as u64)),
        ]
    }
}
