//! The system tables: `blockyard.queries`, `operators`, `tasks`, `memory`, `blocks`, `spills` and `settings`. Each scan
//! shows how things stand when it runs, while other queries run too.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{MemorySchemaProvider, SchemaProvider};
use datafusion::common::Result;
use datafusion::config::ExtensionOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::displayable;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::stream;

use super::execution::{Execution, Observers};
use super::report::{finished_tasks, stages};
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::TaskRecord;
use crate::runtime::{OpStatus, Scheduler};
use crate::store::{BlockStore, NextUse, SharedMemoryPool};

/// Name of the schema with the system tables.
pub(crate) const SYSTEM_SCHEMA: &str = "blockyard";

/// What the tables look at.
#[derive(Debug, Clone)]
struct Sources {
    store: Arc<BlockStore>,
    pool: Arc<SharedMemoryPool>,
    scheduler: Arc<Scheduler>,
    observers: Arc<Observers>,
}

/// The schema with the system tables of a session.
pub(crate) fn system_schema(
    store: &Arc<BlockStore>,
    pool: &Arc<SharedMemoryPool>,
    scheduler: &Arc<Scheduler>,
    observers: &Arc<Observers>,
) -> Result<Arc<dyn SchemaProvider>> {
    let (store, pool, scheduler) = (Arc::clone(store), Arc::clone(pool), Arc::clone(scheduler));
    let sources = Sources { store, pool, scheduler, observers: Arc::clone(observers) };
    let tables = [
        ("memory", columns(&["query", "operator", "kind"], &["bytes", "peak_bytes"]), memory as Rows),
        (
            "blocks",
            columns(
                &["block", "query", "operator", "state", "next_use", "file"],
                &["pins", "num_rows", "size_bytes", "file_bytes"],
            ),
            blocks,
        ),
        (
            "operators",
            columns(
                &["query", "operator", "state", "needs"],
                &[
                    "actors",
                    "pending_actors",
                    "running_tasks",
                    "paused_tasks",
                    "finished_tasks",
                    "produced_blocks",
                    "produced_bytes",
                    "queued_blocks",
                    "queued_bytes",
                    "taken_bytes",
                    "running_ms",
                    "waiting_ms",
                ],
            ),
            operators,
        ),
        (
            "queries",
            columns(&["query", "plan"], &["elapsed_ms", "finished_tasks", "running_tasks", "memory_bytes"]),
            queries,
        ),
        (
            "tasks",
            columns(&["query", "operator", "task", "state"], &["wall_ms", "cpu_ms", "num_rows", "size_bytes"]),
            tasks,
        ),
        ("spills", columns(&["file", "what"], &["bytes"]), spills),
        ("settings", columns(&["name", "value", "description"], &[]), settings),
    ];
    let schema = MemorySchemaProvider::new();
    for (name, columns, rows) in tables {
        let snapshot = Arc::new(Snapshot { columns: Arc::clone(&columns), rows, sources: sources.clone() });
        schema.register_table(name.to_owned(), Arc::new(StreamingTable::try_new(columns, vec![snapshot])?))?;
    }
    Ok(Arc::new(schema))
}

/// Numbers that identify a thing come first and are numbers; the other names are texts.
fn columns(texts: &[&str], numbers: &[&str]) -> SchemaRef {
    let text = |name: &&str| match *name {
        "query" | "block" => Field::new(*name, DataType::UInt64, true),
        name => Field::new(name, DataType::Utf8, true),
    };
    let number = |name: &&str| Field::new(*name, DataType::UInt64, true);
    Arc::new(Schema::new(texts.iter().map(text).chain(numbers.iter().map(number)).collect::<Vec<_>>()))
}

/// The columns of a table, now.
type Rows = fn(&Sources, &TaskContext) -> Vec<ArrayRef>;

struct Snapshot {
    columns: SchemaRef,
    rows: Rows,
    sources: Sources,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({:?})", self.sources.store)
    }
}

impl PartitionStream for Snapshot {
    fn schema(&self) -> &SchemaRef {
        &self.columns
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let batch = RecordBatch::try_new(Arc::clone(&self.columns), (self.rows)(&self.sources, &context));
        let batches = stream::iter([batch.map_err(Into::into)]);
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.columns), batches))
    }
}

fn numbers(values: impl IntoIterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(values))
}

/// Numbers of which 0 stands for none.
fn ids(values: impl IntoIterator<Item = u64>) -> ArrayRef {
    Arc::new(values.into_iter().map(|id| (id != 0).then_some(id)).collect::<UInt64Array>())
}

/// Texts of which the empty one stands for none.
fn texts<S: Into<String>>(values: impl IntoIterator<Item = S>) -> ArrayRef {
    Arc::new(values.into_iter().map(|text| Some(text.into()).filter(|t| !t.is_empty())).collect::<StringArray>())
}

/// Who holds how much: operators of DataFusion, blocks, working sets of tasks, and what is free.
fn memory(sources: &Sources, _context: &TaskContext) -> Vec<ArrayRef> {
    struct Row {
        query: u64,
        operator: String,
        kind: &'static str,
        bytes: usize,
        peak: Option<usize>,
    }
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
    vec![
        ids(rows.iter().map(|row| row.query)),
        texts(rows.iter().map(|row| row.operator.as_str())),
        texts(rows.iter().map(|row| row.kind)),
        numbers(rows.iter().map(|row| row.bytes as u64)),
        Arc::new(rows.iter().map(|row| row.peak.map(|peak| peak as u64)).collect::<UInt64Array>()),
    ]
}

fn blocks(sources: &Sources, _context: &TaskContext) -> Vec<ArrayRef> {
    let blocks = sources.store.blocks();
    let next_use = |next: NextUse| match next {
        NextUse::Soon => "soon",
        NextUse::AfterInput => "after input",
        NextUse::Kept => "kept",
    };
    vec![
        numbers(blocks.iter().map(|block| block.id)),
        ids(blocks.iter().map(|block| block.query)),
        texts(blocks.iter().map(|block| block.operator.as_str())),
        texts(blocks.iter().map(|block| block.state)),
        texts(blocks.iter().map(|block| next_use(block.next_use))),
        texts(blocks.iter().map(|block| block.file.as_ref().map_or(String::new(), |f| f.display().to_string()))),
        numbers(blocks.iter().map(|block| block.pins as u64)),
        numbers(blocks.iter().map(|block| block.metadata.num_rows as u64)),
        numbers(blocks.iter().map(|block| block.metadata.size_bytes as u64)),
        numbers(blocks.iter().map(|block| block.file_bytes as u64)),
    ]
}

/// Stages that the scheduler runs, and what they wait for.
fn operators(sources: &Sources, _context: &TaskContext) -> Vec<ArrayRef> {
    let ops = sources.scheduler.statuses();
    let number = |of: fn(&OpStatus) -> usize| numbers(ops.iter().map(|op| of(op) as u64));
    vec![
        ids(ops.iter().map(|op| op.query)),
        texts(ops.iter().map(|op| op.name.as_str())),
        texts(ops.iter().map(|op| match &op.wait {
            Some(wait) if op.running == 0 => wait.to_string(),
            _ => "running".to_owned(),
        })),
        texts(ops.iter().map(|op| op.needs.to_string())),
        number(|op| op.actors.map_or(0, |actors| actors.ready)),
        number(|op| op.actors.map_or(0, |actors| actors.pending)),
        number(|op| op.running),
        number(|op| op.paused),
        number(|op| op.finished),
        number(|op| op.produced_blocks),
        number(|op| op.produced_bytes as usize),
        number(|op| op.queued_blocks),
        number(|op| op.queued_bytes as usize),
        number(|op| op.held_bytes as usize),
        number(|op| op.ran.as_millis() as usize),
        number(|op| op.waited.values().sum::<std::time::Duration>().as_millis() as usize),
    ]
}

/// Queries that run now.
fn queries(sources: &Sources, _context: &TaskContext) -> Vec<ArrayRef> {
    let running = sources.observers.running();
    let holders = sources.pool.holders();
    let owners = sources.store.owners();
    let memory = |query: u64| {
        let operators: usize = holders.iter().filter(|holder| holder.query == query).map(|holder| holder.bytes).sum();
        let blocks = owners.iter().filter(|owner| owner.query() == query);
        (operators + blocks.map(|owner| owner.block_bytes() + owner.task_bytes()).sum::<usize>()) as u64
    };
    let plan = |execution: &Execution| displayable(execution.plan().as_ref()).indent(false).to_string();
    let tasks = |execution: &Execution| {
        let running = stages(execution).into_iter().filter(|(name, _)| name != "Queue" && name != "Gather");
        running.map(|(_, stage)| stage.running().len() as u64).sum::<u64>()
    };
    vec![
        ids(running.iter().map(Execution::query)),
        texts(running.iter().map(plan)),
        numbers(running.iter().map(|execution| execution.elapsed().as_millis() as u64)),
        numbers(running.iter().map(|execution| finished_tasks(execution) as u64)),
        numbers(running.iter().map(tasks)),
        numbers(running.iter().map(|execution| memory(execution.query()))),
    ]
}

/// Tasks of the queries that run now, ended ones too.
fn tasks(sources: &Sources, _context: &TaskContext) -> Vec<ArrayRef> {
    struct Row {
        query: u64,
        operator: String,
        task: Option<TaskId>,
        wall: Duration,
        record: TaskRecord,
    }
    let mut rows = Vec::new();
    for execution in sources.observers.running() {
        for (operator, stage) in stages(&execution) {
            let (query, name) = (execution.query(), || operator.clone());
            for (task, since) in stage.running() {
                let (task, record) = (Some(task), TaskRecord::default());
                rows.push(Row { query, operator: name(), task, wall: since.elapsed(), record });
            }
            for record in stage.tasks() {
                rows.push(Row { query, operator: name(), task: None, wall: record.wall, record });
            }
        }
    }
    let known = |row: &Row, value: usize| row.task.is_none().then_some(value as u64);
    let column = |of: fn(&Row) -> usize| -> ArrayRef {
        Arc::new(rows.iter().map(|row| known(row, of(row))).collect::<UInt64Array>())
    };
    vec![
        ids(rows.iter().map(|row| row.query)),
        texts(rows.iter().map(|row| row.operator.as_str())),
        texts(rows.iter().map(|row| row.task.as_ref().map_or(String::new(), ToString::to_string))),
        texts(rows.iter().map(|row| if row.task.is_some() { "running" } else { "ended" })),
        numbers(rows.iter().map(|row| row.wall.as_millis() as u64)),
        column(|row| row.record.cpu.as_millis() as usize),
        column(|row| row.record.output.num_rows),
        column(|row| row.record.output.size_bytes),
    ]
}

fn spills(sources: &Sources, _context: &TaskContext) -> Vec<ArrayRef> {
    let files = sources.store.directories().files();
    vec![
        texts(files.iter().map(|file| file.path.display().to_string())),
        texts(files.iter().map(|file| file.what.as_str())),
        numbers(files.iter().map(|file| file.bytes)),
    ]
}

fn settings(_sources: &Sources, context: &TaskContext) -> Vec<ArrayRef> {
    let entries = BlockyardOptions::from_task(context).entries();
    vec![
        texts(entries.iter().map(|entry| entry.key.as_str())),
        texts(entries.iter().map(|entry| entry.value.clone().unwrap_or_default())),
        texts(entries.iter().map(|entry| entry.description)),
    ]
}
