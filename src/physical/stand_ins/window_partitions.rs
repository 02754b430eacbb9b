//! Windows over whole partitions, one partition after the other.
//!
//! DataFusion's operator keeps all of its input, without counting it, and begins when the last row has come. Its input
//! is sorted by the keys of the partitions, so that nothing but the partition at hand has to stay:
//!
//! ```text
//! rows, sorted by g    1 1 1 2 2 3 │ 3 3 3 3 4 5 │ 5 6 ...
//! evaluated            1 1 1 2 2   │ 3 3 3 3 3 4 │ 5 5 6 ...
//! ```
//!
//! Whole partitions are evaluated together as soon as there are some mebibytes of them.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::compute::{SortColumn, concat, concat_batches};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::common::{Result, Statistics, exec_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::windows::WindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, InputDistributionRequirements, PlanProperties};
use futures::{TryStreamExt, stream};

use crate::block::sliced_bytes;
use crate::physical::memory::known_bytes;
use crate::physical::operator::Operator;
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::stream_of;
use crate::store::BlockStore;

/// How often rows are held: as they came, and joined.
const COPIES: usize = 2;
/// Partitions are evaluated together up to about this many bytes,
const TOGETHER_BYTES: usize = 4 << 20;
/// or this part of the memory.
const TOGETHER_PART: usize = 128;

/// Evaluates windows over whole partitions, and holds no more than a partition, or a few mebibytes of them. Reserves
/// memory for these; fails when there is not enough for a partition which it has to hold.
#[derive(Debug)]
pub(crate) struct WindowPartitionsExec {
    window: WindowAggExec,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl WindowPartitionsExec {
    /// Evaluates what `window` would.
    pub(crate) fn new(window: WindowAggExec) -> Self {
        let properties = window.properties().as_ref().clone().with_emission_type(EmissionType::Incremental);
        Self { window, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What it evaluates.
    pub(crate) fn windows(&self) -> &[Arc<dyn WindowExpr>] {
        self.window.window_expr()
    }

    fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        self.window.window_expr()[0].partition_by()
    }

    /// How many times the bytes of the whole input it holds, whatever the data.
    pub(crate) fn copies_of_input(&self) -> usize {
        if self.keys().is_empty() { COPIES } else { 0 }
    }
}

impl WindowPartitionsExec {
    /// Names of the windows.
    fn names(&self) -> String {
        let names: Vec<_> = self.window.window_expr().iter().map(|window| window.name()).collect();
        names.join(", ")
    }
}

impl Operator for WindowPartitionsExec {
    fn name(&self) -> &'static str {
        "WindowPartitionsExec"
    }

    fn describe(&self) -> String {
        format!("wdw=[{}]", self.names())
    }

    fn describe_in_tree(&self) -> String {
        format!("select_list={}", self.names())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.window.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.window.benefits_from_input_partitioning()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.window.required_input_ordering()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.window.input_distribution_requirements()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.window.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.window.apply_expressions(f)
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let can_repartition = !self.window.partition_keys().is_empty();
        let expressions = self.window.window_expr().to_vec();
        Ok(Self::new(WindowAggExec::try_new(expressions, inputs.swap_remove(0), can_repartition)?).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let limit = BlockStore::of_task(&context)?.budget().limit();
        let balance = RowBalance::new(self.name(), &context);
        let partitions = Partitions {
            schema: self.schema(),
            windows: self.window.window_expr().to_vec(),
            input: balance.taking(self.window.input().execute(partition, Arc::clone(&context))?),
            reservation: MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool()),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            together_bytes: TOGETHER_BYTES.min(limit / TOGETHER_PART),
            held: Vec::new(),
            held_bytes: 0,
            ended: false,
        };
        let rows = context.session_config().batch_size();
        let evaluated = stream::try_unfold(partitions, |mut partitions| async move {
            let next: Result<_> = partitions.next().await;
            next.map(|next| next.map(|batch| (batch, partitions)))
        });
        // The next partitions are asked for when the last batch of these has gone on.
        let batches = evaluated
            .map_ok(move |batch: RecordBatch| {
                let starts = (0..batch.num_rows()).step_by(rows.max(1));
                stream::iter(starts.map(move |start| Ok(batch.slice(start, rows.min(batch.num_rows() - start)))))
            })
            .try_flatten();
        let given = balance.giving(stream_of(self.schema(), Box::pin(batches)));
        balance.all_begun()?;
        Ok(given)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.window.child_stats_requests(partition)
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.window.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn min_bytes(&self, _batch_bytes: usize) -> Option<usize> {
        Some(known_bytes(self.window.input().as_ref()).saturating_mul(self.copies_of_input()))
    }
}

/// The partitions of an input that is sorted by their keys.
struct Partitions {
    schema: SchemaRef,
    windows: Vec<Arc<dyn WindowExpr>>,
    input: SendableRecordBatchStream,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
    together_bytes: usize,
    /// Rows that were not evaluated yet, of which the last partition may be incomplete.
    held: Vec<RecordBatch>,
    held_bytes: usize,
    ended: bool,
}

impl Partitions {
    /// The rows of the next partitions and what the windows say about them, as one batch.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        // Those before have gone on.
        self.reservation.try_resize(COPIES * self.held_bytes)?;
        while !self.ended {
            let Some(batch) = self.input.try_next().await? else {
                self.ended = true;
                break;
            };
            let (bytes, rows) = (sliced_bytes(&batch), batch.num_rows());
            if rows == 0 {
                continue;
            }
            self.held_bytes += bytes;
            self.reservation.try_grow(COPIES * bytes)?;
            let complete = if self.held_bytes >= self.together_bytes { self.last_start(&batch)? } else { None };
            let Some(complete) = complete else {
                self.held.push(batch);
                continue;
            };
            self.held.push(batch.slice(0, complete));
            let rest = batch.slice(complete, rows - complete);
            self.held_bytes = sliced_bytes(&rest);
            let whole = std::mem::replace(&mut self.held, vec![rest]);
            return self.evaluate(whole).map(Some);
        }
        self.held_bytes = 0;
        match std::mem::take(&mut self.held) {
            held if held.iter().all(|batch| batch.num_rows() == 0) => Ok(None),
            held => self.evaluate(held).map(Some),
        }
    }

    /// The row of `batch` at which its last partition begins; `None` if it began before.
    fn last_start(&self, batch: &RecordBatch) -> Result<Option<usize>> {
        let last = self.ranges(batch)?.last().map_or(0, |range| range.start);
        if last > 0 {
            return Ok(Some(last));
        }
        match self.held.iter().rfind(|held| held.num_rows() > 0) {
            Some(before) => Ok(self.begins_another(before, batch)?.then_some(0)),
            None => Ok(None),
        }
    }

    /// Whether another partition begins between the last row of `before` and the first of `batch`.
    fn begins_another(&self, before: &RecordBatch, batch: &RecordBatch) -> Result<bool> {
        if batch.num_rows() == 0 {
            return Ok(false);
        }
        let border = [before.slice(before.num_rows() - 1, 1), batch.slice(0, 1)];
        Ok(self.ranges(&concat_batches(batch.schema_ref(), &border)?)?.len() > 1)
    }

    /// The partitions in a batch.
    fn ranges(&self, batch: &RecordBatch) -> Result<Vec<std::ops::Range<usize>>> {
        let keys = self.windows[0].partition_by().iter();
        let keys = keys.map(|key| {
            let values = key.evaluate(batch)?.into_array(batch.num_rows())?;
            Ok(SortColumn { values, options: None })
        });
        evaluate_partition_ranges(batch.num_rows(), &keys.collect::<Result<Vec<_>>>()?)
    }

    /// Evaluates the windows over rows of whole partitions.
    fn evaluate(&self, rows: Vec<RecordBatch>) -> Result<RecordBatch> {
        let _timer = self.metrics.elapsed_compute().timer();
        let batch = concat_batches(&self.input.schema(), &rows)?;
        drop(rows);
        let ranges = self.ranges(&batch)?;
        let partitions: Vec<_> = ranges.iter().map(|range| batch.slice(range.start, range.len())).collect();
        let mut columns = batch.columns().to_vec();
        for window in &self.windows {
            let values = partitions.iter().map(|partition| window.evaluate(partition));
            columns.push(joined(&values.collect::<Result<Vec<_>>>()?)?);
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?.record_output(&self.metrics))
    }
}

fn joined(values: &[ArrayRef]) -> Result<ArrayRef> {
    match values {
        [] => exec_err!("a window has no partition"),
        [one] => Ok(Arc::clone(one)),
        _ => Ok(concat(&values.iter().map(AsRef::as_ref).collect::<Vec<_>>())?),
    }
}
