//! Sorts the rows of a stream in memory, where they fit.
//!
//! DataFusion sorts each batch and merges all of them at once: a row of 600 batches is compared nine times, each time
//! with one that no cache holds. Here the bytes of the keys that differ become a number, each batch is dealt out by
//! some of these numbers, and a part of all batches is put together and sorted when it is its turn:
//!
//! ```text
//! batches        5 1 9 | 3 8 1 | 7 2 4        keys as numbers
//! dealt out      1 5 9 | 3 1 8 | 2 4 7
//! a part         1 3 1 2  ->  1 1 2 3         given before the next one is sorted
//! ```
//!
//! As soon as rows turn out not to fit, those that are there, and then all others, go to DataFusion's sort, which
//! spills.

use std::sync::Arc;
use std::task::Poll;

use datafusion::arrow::array::{RecordBatch, UInt32Array};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::row::Rows;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use crate::block::sliced_bytes;
use crate::physical::exchange::{Order, Part, dealer};
use crate::physical::fetched;
use crate::physical::operator::{IntoPlan, Operator};
use crate::physical::rows_of_input;
use crate::physical::tasks::{RowBalance, stream_of};
use crate::store::BlockStore;

/// All streams of a sort may take this part of the limit.
const PART_OF_LIMIT: usize = 4;
/// With less for each stream it is not worth a try.
const LEAST: usize = 16 << 20;
/// Bytes that a row takes, beside itself and its key, when it is dealt out.
const ROW_BYTES: usize = 48;
/// So much, and some batches, is left free for DataFusion's sort to begin with, which sets it aside for its merge.
const BEGIN_BYTES: usize = 16 << 20;
const BEGIN_BATCHES: usize = 4;

/// The rows of a sort.
#[derive(Debug)]
pub(crate) struct SortInMemoryExec {
    /// The sort, which runs where rows do not fit.
    sort: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl SortInMemoryExec {
    /// The same rows as those of `sort`, a sort of all rows.
    pub(crate) fn new(sort: Arc<dyn ExecutionPlan>) -> Self {
        Self { sort, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Bytes that each of the streams of a sort may take within a limit, if that is enough to try.
    pub(crate) fn room(limit: usize, streams: usize) -> Option<usize> {
        Some(limit / PART_OF_LIMIT / streams.max(1)).filter(|room| *room >= LEAST)
    }
}

impl Operator for SortInMemoryExec {
    fn name(&self) -> &'static str {
        "SortInMemoryExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.sort.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.sort]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let streams = self.sort.output_partitioning().partition_count();
        let room = Self::room(BlockStore::of_task(&context)?.budget().limit(), streams);
        let (Some(sort), Some(most)) = (self.sort.downcast_ref::<SortExec>(), room) else {
            return self.sort.execute(partition, context);
        };
        let balance = RowBalance::new(self.name(), &context);
        let input = balance.taking(sort.input().execute(partition, Arc::clone(&context))?);
        let unsorted = Unsorted {
            order: Order { by: sort.expr().iter().cloned().collect(), schema: sort.schema() },
            batches: Vec::new(),
            keys: Vec::new(),
            bytes: 0,
            reservation: MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool()),
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let too_many = MetricBuilder::new(&self.metrics).counter("handed_over", partition);
        let sorted = sorted(input, unsorted, most, metrics, too_many, context);
        let given = balance.giving(stream_of(self.schema(), stream::once(sorted).try_flatten().boxed()));
        balance.all_begun()?;
        Ok(given)
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// The rows of a stream in order: sorted here, if they take at most `most` bytes.
async fn sorted(
    mut input: SendableRecordBatchStream,
    mut rows: Unsorted,
    most: usize,
    metrics: BaselineMetrics,
    handed_over: Count,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let schema = input.schema();
    while let Some(batch) = input.try_next().await? {
        let timer = metrics.elapsed_compute().timer();
        let has_room = rows.take(batch, most)?;
        timer.done();
        if !has_room {
            handed_over.add(1);
            return rows.by_datafusion(input, context);
        }
    }
    let mut rows = rows.sorted(context.session_config().batch_size(), &metrics).await?;
    let batches = stream::poll_fn(move |_| {
        let _timer = metrics.elapsed_compute().timer();
        let batch = rows.next().transpose();
        Poll::Ready(batch.map(|batch| batch.map(|batch| batch.record_output(&metrics))))
    });
    Ok(stream_of(schema, batches.boxed()))
}

/// Rows that have come.
struct Unsorted {
    order: Order,
    batches: Vec<RecordBatch>,
    keys: Vec<Rows>,
    bytes: usize,
    reservation: MemoryReservation,
}

impl Unsorted {
    /// Takes rows, and says whether there is room for all that there are.
    fn take(&mut self, batch: RecordBatch, most: usize) -> Result<bool> {
        if batch.num_rows() == 0 {
            return Ok(true);
        }
        let keys = self.order.keys(&batch)?;
        self.bytes += sliced_bytes(&batch) + keys.size() + ROW_BYTES * batch.num_rows();
        self.batches.push(batch);
        self.keys.push(keys);
        Ok(self.bytes <= most && self.reservation.try_resize(self.bytes).is_ok())
    }

    /// All rows that are here, and then those of `rest`, sorted with what can spill.
    fn by_datafusion(
        self,
        rest: SendableRecordBatchStream,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Self { order, batches, keys, reservation, .. } = self;
        drop(keys);
        let held: usize = batches.iter().map(sliced_bytes).sum();
        let largest = batches.iter().map(sliced_bytes).max().unwrap_or(0);
        let _is_less = reservation.try_resize(held.saturating_sub(BEGIN_BYTES + BEGIN_BATCHES * largest));
        // What the sort takes of it, it counts itself.
        let here = batches.into_iter().map(move |batch| {
            reservation.shrink(sliced_bytes(&batch).min(reservation.size()));
            Ok(batch)
        });
        let schema = Arc::clone(&order.schema);
        let all = Mutex::new(Some(stream_of(Arc::clone(&schema), stream::iter(here).chain(rest).boxed())));
        let none = Arc::clone(&schema);
        let once = move || all.lock().take().unwrap_or_else(|| stream_of(Arc::clone(&none), stream::empty().boxed()));
        let Some(by) = LexOrdering::new(order.by) else { return internal_err!("a sort has no keys") };
        let sort = SortExec::new(by, fetched(schema, Arc::new(once))?).with_preserve_partitioning(true);
        sort.execute(0, context)
    }

    /// The rows in order, of which so many make a batch.
    async fn sorted(self, batch_rows: usize, metrics: &BaselineMetrics) -> Result<Sorted> {
        let Self { order, mut batches, keys, reservation, .. } = self;
        let timer = metrics.elapsed_compute().timer();
        let mut dealer = dealer(keys);
        timer.done();
        for batch in &mut batches {
            let timer = metrics.elapsed_compute().timer();
            let Some(order) = dealer.next_batch() else { break };
            *batch = take_record_batch(batch, &order)?;
            timer.done();
            // Others may have a turn, or want all to end.
            tokio::task::yield_now().await;
        }
        Ok(Sorted {
            schema: order.schema,
            batches,
            parts: dealer.parts(),
            part: None,
            batch_rows: batch_rows.max(1),
            _reserved: reservation,
        })
    }
}

/// Rows that are given in order.
struct Sorted {
    schema: SchemaRef,
    /// Their rows are part by part.
    batches: Vec<RecordBatch>,
    parts: Box<dyn Iterator<Item = Part> + Send>,
    /// The rows of a part, and what is left of their order.
    part: Option<(RecordBatch, UInt32Array)>,
    batch_rows: usize,
    _reserved: MemoryReservation,
}

impl Sorted {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some((rows, order)) = &mut self.part
                && !order.is_empty()
            {
                let next = order.slice(0, self.batch_rows.min(order.len()));
                *order = order.slice(next.len(), order.len() - next.len());
                return Ok(Some(take_record_batch(rows, &next)?));
            }
            let Some(Part { rows, order }) = self.parts.next() else {
                self.part = None;
                return Ok(None);
            };
            let pieces = self.batches.iter().zip(rows).filter(|(_, rows)| !rows.is_empty());
            let pieces: Vec<_> = pieces.map(|(batch, rows)| batch.slice(rows.start, rows.len())).collect();
            self.part = Some((concat_batches(&self.schema, &pieces)?, order));
        }
    }
}
