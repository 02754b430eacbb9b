//! The rows of tasks, as an executor sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::messages::{Connection, Reply, Run, hung_up};
use super::queries::Queries;
use crate::block::{compact_views, pieces, sliced_bytes};
use crate::error::one_message;
use crate::physical::{of_tasks, stream_of};
use crate::runtime::in_background;
use crate::wire::{BatchWriter, write_line};

/// Rows are written so many bytes at once, of which there is a copy meanwhile; a row that has more is written alone.
const SENT_BYTES: usize = 1 << 20;

impl Queries {
    /// Sends the rows of tasks.
    pub(super) async fn send(&self, mut connection: Connection, run: Run) -> Result<()> {
        let Some(query) = self.get(&run.query) else {
            return connection.say_last(&Reply::Unknown).await;
        };
        let Some(stage) = query.stages.get(&run.stage) else {
            return connection.say_last(&Reply::Unknown).await;
        };
        let schema = stage.schema();
        let _running = Running::begin(&self.units);
        // What operators have learnt of other rows, or of the same ones before, is nothing to these.
        let stage = of_tasks(Arc::clone(stage), run.tasks.0..run.tasks.1).and_then(reset_plan_states);
        let rows = stage.map(|stage| rows_of(stage, &query.context));
        write_line(&mut connection.write, &Reply::Rows).await?;
        let mut writer = BatchWriter::default();
        let sent = match rows {
            Ok(rows) => tokio::select! {
                sent = sent(&mut connection.write, in_background(rows), &mut writer, run.skip) => sent,
                () = hung_up(&mut connection.read) => return Ok(()),
            },
            Err(e) => Err(e),
        };
        if sent.is_err() && self.is_closing() {
            // Another executor can do what this one could not, once the connection is closed.
            return Ok(());
        }
        let end = writer.end(&schema)?;
        connection.write.write_all(&end).await?;
        let reply = match sent {
            Ok(rows) => Reply::Done { rows },
            Err(e) => Reply::Failed(one_message(&e)),
        };
        connection.say_last(&reply).await
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
    }
    Ok(seen)
}
