//! `blockyard.operators`.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::execution::TaskContext;

use super::column::{Column, id, number, text};
use super::table::{Sources, Table};
use crate::runtime::OpStatus;

/// Stages that the scheduler runs, and what they wait for.
pub(super) struct Operators;

impl Table for Operators {
    const NAME: &'static str = "operators";
    const ABOUT: &'static str = "Stages that the scheduler runs, and what they wait for.";
    type Row = OpStatus;

    async fn rows(sources: Sources, _context: Arc<TaskContext>) -> Result<Vec<OpStatus>> {
        Ok(sources.scheduler.statuses())
    }

    fn columns() -> Vec<Column<OpStatus>> {
        let state = |op: &OpStatus| match &op.wait {
            Some(wait) if op.running == 0 => wait.to_string(),
            _ => "running".to_owned(),
        };
        let waited = |op: &OpStatus| Some(op.waited.values().sum::<Duration>().as_millis() as u64);
        vec![
            number("query", "Number of the query.", |op| id(op.query)),
            text("operator", "Names of the operators of the stage.", |op| op.name.clone()),
            text("state", "`running`, or what it waits for.", state),
            text("needs", "Resources of a task.", |op| op.needs.to_string()),
            number("actors", "Actors that are ready.", |op| Some(op.actors.map_or(0, |actors| actors.ready) as u64)),
            number("pending_actors", "Actors that are being built.", |op| {
                Some(op.actors.map_or(0, |actors| actors.pending) as u64)
            }),
            number("running_tasks", "Tasks that run.", |op| Some(op.running as u64)),
            number("paused_tasks", "Tasks that have begun and wait.", |op| Some(op.paused as u64)),
            number("finished_tasks", "Tasks that have ended.", |op| Some(op.finished as u64)),
            number("produced_blocks", "Blocks that it has given.", |op| Some(op.produced_blocks as u64)),
            number("produced_bytes", "Bytes of these.", |op| Some(op.produced_bytes)),
            number("queued_blocks", "Blocks that nobody has taken.", |op| Some(op.queued_blocks as u64)),
            number("queued_bytes", "Bytes of these.", |op| Some(op.queued_bytes)),
            number("taken_bytes", "Bytes of its blocks that others hold.", |op| Some(op.held_bytes)),
            number("running_ms", "For how long it has run, in milliseconds.", |op| Some(op.ran.as_millis() as u64)),
            number("waiting_ms", "For how long it has waited, in milliseconds.", waited),
        ]
    }
}
