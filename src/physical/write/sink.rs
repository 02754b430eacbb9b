//! Ray's `Write` to a sink of an application: blocks in parallel, and then one commit.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, stream};

use super::clock::{InputTime, WriteClock};
use super::each_block::{Tries, each_block};
use crate::block::{Block, TaskId};
use crate::error::ErrorContext;
use crate::physical::memory::block_bytes;
use crate::physical::operator::{InputOrder, IntoPlan, Operator, Retention};
use crate::physical::tasks::{RowBalance, properties, stream_of};
use crate::runtime::{block_on_io, in_thread};
use crate::sinks::{AnyDatasink, AnyWriteJob};
use crate::store::{Owner, QueryPool};

/// Writes its input to a sink and returns the number of rows.
#[derive(Debug)]
pub(crate) struct SinkExec {
    input: Arc<dyn ExecutionPlan>,
    input_order: InputOrder,
    sink: Arc<dyn AnyDatasink>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SinkExec {
    /// Writes `input` to `sink`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, sink: Arc<dyn AnyDatasink>) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new("count", DataType::UInt64, false)]));
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Final);
        let input_order = InputOrder::of(input.as_ref());
        Self { input, input_order, sink, properties, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl Operator for SinkExec {
    fn name(&self) -> &'static str {
        "SinkExec"
    }

    fn describe(&self) -> String {
        self.sink.name().to_owned()
    }

    fn describe_in_tree(&self) -> String {
        self.sink.name().to_owned()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        vec![&self.input_order]
    }

    /// As DataFusion's sinks say too: else a sort by columns that are not among the result would be dropped.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = Self::new(inputs.swap_remove(0), Arc::clone(&self.sink));
        Ok(Self { input_order: self.input_order.clone(), ..plan }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("SinkExec has one partition, not {partition}");
        }
        let (input, sink, metrics) = (Arc::clone(&self.input), Arc::clone(&self.sink), self.metrics.clone());
        let schema = self.schema();
        let count = stream::once(async move {
            let rows = match sink.begin(input.schema()).await? {
                Some(job) => Running::new(job).run(&input, sink.name(), &context, &metrics).await?,
                None => 0,
            };
            MetricBuilder::new(&metrics).output_rows(0).add(rows);
            Ok(RecordBatch::try_new(schema, vec![Arc::new(UInt64Array::from(vec![rows as u64]))])?)
        });
        Ok(stream_of(self.schema(), count.boxed()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn stores_rows(&self) -> bool {
        true
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: false }
    }

    fn min_bytes(&self, batch_bytes: usize) -> Option<usize> {
        Some(self.input.output_partitioning().partition_count() * 2 * batch_bytes)
    }
}

/// A job that has begun, and is aborted where nobody waits for it any more.
struct Running(Option<Arc<dyn AnyWriteJob>>);

impl Running {
    fn new(job: Box<dyn AnyWriteJob>) -> Self {
        Self(Some(job.into()))
    }

    /// Writes all blocks and commits. Returns the number of rows.
    async fn run(
        mut self,
        input: &Arc<dyn ExecutionPlan>,
        name: &str,
        context: &Arc<TaskContext>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<usize> {
        let Some(job) = self.0.clone() else { return internal_err!("a write that has ended") };
        let written = async {
            let (rows, blocks) = write(&job, input, name, context, metrics).await?;
            job.commit(blocks).await.while_doing(|| format!("committing {name}"))?;
            Ok(rows)
        };
        let written = written.await;
        self.0 = None;
        let Err(e) = written else { return written };
        match job.abort(&e).await {
            Ok(()) => Err(e),
            Err(left) => Err(e.context(format!("{name} could not undo what it had written: {left}"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(job) = self.0.take() else { return };
        // A drop cannot wait, and what the write has left is not to stay because of that.
        let _started = in_thread("blockyard-abort", move || {
            let cancelled = exec_datafusion_err!("the write was cancelled");
            let _aborted = block_on_io(async move { job.abort(&cancelled).await });
        });
    }
}

/// Writes all blocks: the number of rows, and what the job said of each block, in the order of the rows.
async fn write(
    job: &Arc<dyn AnyWriteJob>,
    input: &Arc<dyn ExecutionPlan>,
    name: &str,
    context: &Arc<TaskContext>,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<(usize, Vec<String>)> {
    let owner = Arc::new(Owner::default());
    owner.describe(QueryPool::query_of(context), || name.to_owned());
    let balance = RowBalance::new(name.to_owned(), context);
    let tries = Tries::of(context);
    let (of_job, of_tries, clock) = (Arc::clone(job), tries.clone(), WriteClock::new(metrics));
    let write = move |id: TaskId, block: Block| {
        let (job, tries, clock) = (Arc::clone(&of_job), of_tries.clone(), clock.clone());
        async move {
            let (name, rows) = (id.to_string(), block.num_rows());
            let once = || async {
                let batches = stream::iter(block.batches().to_vec()).map(Ok).boxed();
                let write = job.write(&name, stream_of(Arc::clone(block.schema()), batches));
                clock.time_future(&InputTime::default(), write).await
            };
            let written = tries.run(&id, format!("block {name}"), once).await?;
            Ok((id, rows, written))
        }
    };
    let mut written = each_block(input, context, block_bytes(context)?, &owner, &balance, |_| 0, write).await?;
    tries.note(metrics);
    written.sort_by(|a, b| a.0.cmp(&b.0));
    let rows = written.iter().map(|(_, rows, _)| rows).sum();
    balance.give(rows);
    balance.check()?;
    Ok((rows, written.into_iter().map(|(_, _, written)| written).collect()))
}
