//! The rows of tasks, as an executor sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::messages::{Connection, Fetch, Map, Reply, Run, hung_up};
use super::queries::Queries;
use super::query::Query;
use super::taken::Taken;
use crate::block::{compact_views, pieces, sliced_bytes};
use crate::error::one_message;
use crate::physical::{PlanExt, WriteTasksExec, Writing, stream_of};
use crate::runtime::in_background;
use crate::wire::{BatchWriter, write_line};

/// Rows are written so many bytes at once, of which there is a copy meanwhile; a row that has more is written alone.
const SENT_BYTES: usize = 1 << 20;

impl Queries {
    /// Sends the rows of tasks.
    pub(super) async fn send(self: &Arc<Self>, connection: Connection, run: Run) -> Result<()> {
        let Some(query) = self.get(&run.query).filter(|query| query.stages.contains_key(&run.stage)) else {
            return connection.say_last(&Reply::Unknown).await;
        };
        let _running = Running::begin(&self.units);
        let (rows, taken) = match self.part(&query, run.stage, None, &run.source) {
            Ok((part, taken)) => (rows_of_run(part, &run, &query), taken),
            Err(e) => (Err(e), Arc::default()),
        };
        self.send_rows(connection, rows, run.skip, &taken).await
    }

    /// Sends rows that are kept here.
    pub(super) async fn give(&self, connection: Connection, fetch: Fetch) -> Result<()> {
        let Some(query) = self.get(&fetch.query) else {
            return connection.say_last(&Reply::Unknown).await;
        };
        let Fetch { stage, exchange, units, rows, with_codes, .. } = fetch;
        let rows = query.kept(stage, exchange, &units, &rows, with_codes);
        let schema = query.schema_of(stage, exchange, with_codes);
        let rows = rows.and_then(|rows| Ok(stream_of(schema?, rows)));
        self.send_rows(connection, rows, 0, &Taken::default()).await
    }

    async fn send_rows(
        &self,
        mut connection: Connection,
        rows: Result<SendableRecordBatchStream>,
        skip: u64,
        taken: &Taken,
    ) -> Result<()> {
        let rows = match rows {
            Ok(rows) => rows,
            Err(e) => return connection.say_last(&taken.reply(&e)).await,
        };
        let schema = rows.schema();
        write_line(&mut connection.write, &Reply::Rows).await?;
        let mut writer = BatchWriter::default();
        let sent = tokio::select! {
            sent = sent(&mut connection.write, in_background(rows), &mut writer, skip) => sent,
            () = hung_up(&mut connection.read) => return Ok(()),
        };
        if sent.is_err() && self.is_closing() {
            // Another executor can do what this one could not, once the connection is closed.
            return Ok(());
        }
        let end = writer.end(&schema)?;
        connection.write.write_all(&end).await?;
        let reply = match sent {
            Ok(rows) => Reply::Done { rows, taken: taken.rows() },
            Err(e) => taken.reply(&e),
        };
        connection.say_last(&reply).await
    }

    /// Runs tasks below an exchange, and keeps their rows.
    pub(super) async fn map(self: &Arc<Self>, mut connection: Connection, map: Map) -> Result<()> {
        let Some(query) = self.get(&map.query).filter(|query| query.stages.contains_key(&map.stage)) else {
            return connection.say_last(&Reply::Unknown).await;
        };
        let _running = Running::begin(&self.units);
        let mapped = match self.part(&query, map.stage, Some(map.exchange), &map.source) {
            Ok((part, taken)) => {
                let kept = query.keep(&map, &part, &taken);
                let kept = tokio::select! {
                    kept = kept => kept,
                    () = hung_up(&mut connection.read) => return Ok(()),
                };
                kept.map_err(|e| taken.reply(&e))
            }
            Err(e) => Err(Reply::Failed(one_message(&e))),
        };
        match mapped {
            Ok(mapped) => connection.say_last(&Reply::Mapped(mapped)).await,
            // Another executor can do what this one could not, once the connection is closed.
            Err(_) if self.is_closing() => Ok(()),
            Err(reply) => connection.say_last(&reply).await,
        }
    }
}

/// A unit that runs.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn begin(units: &'a AtomicUsize) -> Self {
        units.fetch_add(1, Relaxed);
        Self(units)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The rows of a part of a stage: of one that writes files what tells of these, or what would be in them.
fn rows_of_run(part: Arc<dyn ExecutionPlan>, run: &Run, query: &Query) -> Result<SendableRecordBatchStream> {
    let context = &query.context;
    match (part.operator::<WriteTasksExec>(), &run.write) {
        (None, None) => Ok(rows_of(part, context)),
        (Some(tasks), None) => Ok(rows_of(Arc::clone(tasks.input()), context)),
        (Some(tasks), Some(write)) => {
            let area = Arc::new(write.place.clone().area(context, write.attempt)?);
            // No more than there is room for here.
            let target_bytes = write.target_bytes.min(tasks.files().block_bytes(context)?);
            let writing = Writing::new(&area, Some(write.within), target_bytes);
            let (schema, context) = (part.schema(), writing.context(context));
            Ok(stream_of(schema, query.in_turn(move || rows_of(part, &context))))
        }
        (None, Some(_)) => internal_err!("a stage that writes nothing was asked to"),
    }
}

/// All rows of a plan, partition by partition.
fn rows_of(plan: Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> SendableRecordBatchStream {
    let (schema, context) = (plan.schema(), Arc::clone(context));
    let partitions = 0..plan.output_partitioning().partition_count();
    let rows = stream::iter(partitions).map(move |partition| plan.execute(partition, Arc::clone(&context)));
    stream_of(schema, rows.try_flatten().boxed())
}

/// Writes the rows behind the first `skip`; returns how many there are with these.
async fn sent(
    to: &mut (impl AsyncWrite + Unpin),
    mut rows: SendableRecordBatchStream,
    writer: &mut BatchWriter,
    skip: u64,
) -> Result<u64> {
    let mut seen = 0;
    while let Some(batch) = rows.try_next().await? {
        let before = skip.saturating_sub(seen).min(batch.num_rows() as u64) as usize;
        seen += batch.num_rows() as u64;
        let left = batch.slice(before, batch.num_rows() - before);
        let bytes_of_row = sliced_bytes(&left).div_ceil(left.num_rows().max(1)).max(1);
        for piece in pieces(left, (SENT_BYTES / bytes_of_row).max(1)) {
            to.write_all(&writer.bytes_of(&compact_views(&piece)?)?).await?;
        }
        // What encrypts may keep some of it, and the next rows may be long in coming.
        to.flush().await?;
    }
    Ok(seen)
}
