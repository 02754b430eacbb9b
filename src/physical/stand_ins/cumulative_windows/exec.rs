//! The operator, and how it gives rows as soon as it knows what is said of them.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    ExecutionPlan, InputDistributionRequirements, PlanProperties, replace_children_if_necessary,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::CumulativeWindow;
use super::rows::{Borders, Groups};
use super::walk::Until;
use super::window::{evaluating, ranks_peers, until};
use crate::physical::operator::{IntoPlan, Operator};
use crate::physical::stand_ins::stored_rows::StoredRows;
use crate::physical::tasks::{RowBalance, stream_of};
use crate::store::{BlockStore, Owner, QueryPool};

/// Evaluates cumulative windows in place of DataFusion's operator, whose plan it keeps: rows must come in the order
/// that asks for.
#[derive(Debug)]
pub(crate) struct CumulativeWindowsExec {
    replaced: Arc<dyn ExecutionPlan>,
    windows: Vec<Arc<dyn WindowExpr>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl CumulativeWindowsExec {
    /// In place of `replaced`, which evaluates these windows.
    pub(crate) fn new(replaced: Arc<dyn ExecutionPlan>, windows: Vec<Arc<dyn WindowExpr>>) -> Self {
        let properties = replaced.properties().as_ref().clone().with_emission_type(EmissionType::Incremental);
        Self { replaced, windows, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    fn input(&self) -> &Arc<dyn ExecutionPlan> {
        self.replaced.children()[0]
    }

    /// What it evaluates.
    pub(crate) fn windows(&self) -> &[Arc<dyn WindowExpr>] {
        &self.windows
    }

    /// Names of the windows.
    fn names(&self) -> String {
        let names: Vec<_> = self.windows.iter().map(|window| window.name()).collect();
        names.join(", ")
    }
}

impl Operator for CumulativeWindowsExec {
    fn name(&self) -> &'static str {
        "CumulativeWindowsExec"
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
        self.replaced.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.replaced.benefits_from_input_partitioning()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.replaced.required_input_ordering()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.replaced.input_distribution_requirements()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.replaced.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.replaced.apply_expressions(f)
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let replaced = replace_children_if_necessary(Arc::clone(&self.replaced), inputs)?;
        Ok(Self::new(replaced, self.windows.clone()).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let owner = Arc::<Owner>::default();
        owner.describe(QueryPool::query_of(&context), || "Window".to_owned());
        let balance = RowBalance::new(self.name(), &context);
        let input_schema = self.input().schema();
        let windows = self.windows.iter().map(|window| evaluating(window.as_ref(), &input_schema));
        let looks: Vec<_> = self.windows.iter().filter_map(|window| until(window.as_ref())).collect();
        let waits: Vec<_> = looks.iter().map(|until| *until > Until::Row).collect();
        let schema = self.schema();
        let (of_input, of_windows) = schema.fields().split_at(input_schema.fields().len());
        let said_at_once = waits.iter().zip(of_windows).filter(|(waits, _)| !**waits).map(|(_, field)| field);
        let waiting = Schema::new(of_input.iter().chain(said_at_once).cloned().collect::<Vec<_>>());
        let ranks = self.windows.iter().any(|window| ranks_peers(window.as_ref()));
        let farthest = looks.into_iter().max().unwrap_or(Until::Row);
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let given_metrics = metrics.clone();
        let windows = Windows {
            schema: self.schema(),
            waiting_schema: Arc::new(waiting),
            borders: Borders::new(self.windows[0].as_ref(), ranks || farthest == Until::Peers),
            windows: windows.collect::<Result<_>>()?,
            until: farthest,
            waits,
            input: balance.taking(self.input().execute(partition, Arc::clone(&context))?),
            reservation: MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool()),
            metrics,
            store: BlockStore::of_task(&context)?,
            owner,
            open: None,
        };
        let given = stream::try_unfold(windows, |mut windows| async move {
            let next: Result<_> = windows.next().await;
            next.map(|next| next.map(|rows| (rows, windows)))
        });
        let given = given.try_flatten().map_ok(move |batch| batch.record_output(&given_metrics));
        let given = balance.giving(stream_of(self.schema(), given.boxed()));
        balance.all_begun()?;
        Ok(given)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.replaced.child_stats_requests(partition)
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.replaced.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// The windows over one partition of the input.
struct Windows {
    schema: SchemaRef,
    /// Columns of rows that wait: those of the input, and what is said at once.
    waiting_schema: SchemaRef,
    borders: Borders,
    windows: Vec<Box<dyn CumulativeWindow>>,
    /// How far that one looks which looks farthest.
    until: Until,
    /// Which of them know of a row what to say when more rows have come.
    waits: Vec<bool>,
    input: SendableRecordBatchStream,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
    open: Option<Open>,
}

/// The last rows, whose group may not be complete.
struct Open {
    rows: StoredRows,
    /// What the windows that wait say if no more come.
    said: Vec<ScalarValue>,
}

type Batches = BoxStream<'static, Result<RecordBatch>>;

impl Windows {
    /// The next rows of which all is said.
    async fn next(&mut self) -> Result<Option<Batches>> {
        while let Some(batch) = self.input.try_next().await? {
            if batch.num_rows() > 0 {
                let given = self.evaluate(&batch)?;
                let open = self.open.as_ref().map_or(0, |open| open.rows.bytes());
                let windows: usize = self.windows.iter().map(|window| window.bytes()).sum();
                self.reservation.try_resize(open + windows)?;
                return Ok(Some(given));
            }
        }
        Ok(self.open.take().map(|open| self.closed(open)))
    }

    /// The rows of which all is said when these have come.
    fn evaluate(&mut self, batch: &RecordBatch) -> Result<Batches> {
        let metrics = self.metrics.clone();
        let _timer = metrics.elapsed_compute().timer();
        let rows = self.borders.rows(batch)?;
        let said = self.windows.iter_mut().map(|window| window.next(&rows)).collect::<Result<Vec<_>>>()?;
        let Groups { ranges, continues } = match self.until {
            Until::Row => return Ok(stream::iter([self.whole(batch, said)]).boxed()),
            Until::Peers => rows.peers,
            Until::Partition => rows.partitions,
        };
        let last = ranges.last().map_or(0, |range| range.start);
        let mut given = stream::empty().boxed();
        if let Some(mut open) = self.open.take() {
            if continues {
                open.said = self.said_of(&said, 0)?;
            }
            if continues && last == 0 {
                open.rows.push(self.waiting(batch, &said)?)?;
                self.open = Some(open);
                return Ok(given);
            }
            given = self.closed(open);
        }
        let slices = |from: usize, to: usize| said.iter().map(|said| said.slice(from, to - from)).collect::<Vec<_>>();
        if last > 0 {
            let complete = self.whole(&batch.slice(0, last), slices(0, last));
            given = given.chain(stream::iter([complete])).boxed();
        }
        let end = batch.num_rows();
        let mut rows = StoredRows::new(&self.waiting_schema, &self.store, &self.owner);
        rows.push(self.waiting(&batch.slice(last, end - last), &slices(last, end))?)?;
        self.open = Some(Open { rows, said: self.said_of(&said, last)? });
        Ok(given)
    }

    /// Rows and what all windows say of them.
    fn whole(&self, batch: &RecordBatch, said: Vec<ArrayRef>) -> Result<RecordBatch> {
        let columns = batch.columns().iter().cloned().chain(said).collect();
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    /// Rows and what those windows say of them which do not wait.
    fn waiting(&self, batch: &RecordBatch, said: &[ArrayRef]) -> Result<RecordBatch> {
        let at_once = said.iter().zip(&self.waits).filter(|(_, waits)| !**waits).map(|(said, _)| said);
        let columns = batch.columns().iter().chain(at_once).cloned().collect();
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.waiting_schema), columns, &rows)?)
    }

    /// What those windows say of a row which wait.
    fn said_of(&self, said: &[ArrayRef], row: usize) -> Result<Vec<ScalarValue>> {
        let waiting = said.iter().zip(&self.waits).filter(|(_, waits)| **waits);
        waiting.map(|(said, _)| ScalarValue::try_from_array(said, row)).collect()
    }

    /// Rows that have waited.
    fn closed(&self, open: Open) -> Batches {
        let Open { rows, said } = open;
        let (schema, waits, input_columns) =
            (Arc::clone(&self.schema), self.waits.clone(), self.input.schema().fields().len());
        let with_said = move |batch: RecordBatch| {
            let (input, at_once) = batch.columns().split_at(input_columns);
            let (mut columns, mut at_once, mut said) = (input.to_vec(), at_once.iter(), said.iter());
            for waits in &waits {
                columns.extend(match waits {
                    true => said.next().map(|said| said.to_array_of_size(batch.num_rows())).transpose()?,
                    false => at_once.next().cloned(),
                });
            }
            Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
        };
        rows.read().map(move |batch| batch.and_then(&with_said)).boxed()
    }
}
