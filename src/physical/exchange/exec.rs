//! [`ExchangeExec`].

use crate::physical::operator::IntoPlan;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr, PlanProperties};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;

use super::Scheme;
use super::buckets::{Buckets, FirstTask, MapInput};
use super::distributed::Distributed;
use crate::physical::StageMetrics;
use crate::physical::operator::InputOrder;
use crate::physical::operator::claims;
use crate::physical::operator::{MapSide, TaskIdentity, TaskPlan};
use crate::physical::operator::{Operator, Retention, Starts};
use crate::physical::place::{Mark, Place};
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::{Executions, Joined, RunState};
use crate::physical::tasks::{Task, TaskStream, as_task_plan, execute_tasks, properties, stream_of};
use crate::runtime::Drivers;
use crate::store::QueryPool;

/// Moves rows between tasks by a [`Scheme`].
#[derive(Debug)]
pub(crate) struct ExchangeExec {
    input: Arc<dyn ExecutionPlan>,
    scheme: Arc<dyn Scheme>,
    input_order: Option<InputOrder>,
    /// Whether the stage below belongs to the map side.
    fused: bool,
    /// Whether it is one of a stage of other processes, which have the tasks of its input and of its output.
    distributed: bool,
    /// Where it goes on for another execution.
    begin: Option<FirstTask>,
    /// How many tasks there are, where these are ranges of codes and it is known; shared with those that begin in its
    /// middle.
    ranges_of_codes: Arc<AtomicUsize>,
    runs: Executions<Mutex<RunState<ExchangeRun>>>,
    properties: Arc<PlanProperties>,
    map_stage: StageMetrics,
    stage: StageMetrics,
}

/// What the map side makes, for all streams.
type SharedBuckets = Shared<BoxFuture<'static, Result<Arc<dyn Buckets>, Arc<DataFusionError>>>>;

/// One execution. When the last of the streams drops, the map side is cancelled and its blocks go.
struct ExchangeRun {
    buckets: SharedBuckets,
    next: AtomicUsize,
    balance: Arc<RowBalance>,
}

impl fmt::Debug for ExchangeRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExchangeRun(next={})", self.next.load(Relaxed))
    }
}

impl ExchangeExec {
    /// An exchange of the rows of `input`, with `partitions` streams.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, scheme: impl Scheme, partitions: usize) -> Self {
        Self::with_scheme(input, Arc::new(scheme), partitions)
    }

    /// The same over another input.
    pub(crate) fn over(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        Self::with_scheme(input, Arc::clone(&self.scheme), self.partitions())
    }

    fn with_scheme(input: Arc<dyn ExecutionPlan>, scheme: Arc<dyn Scheme>, partitions: usize) -> Self {
        let properties = properties(claims::of_rows(input.as_ref()), partitions, scheme.emission());
        let input_order = scheme.needs_order().then(|| InputOrder::of(input.as_ref()));
        Self {
            input,
            scheme,
            input_order,
            fused: false,
            distributed: false,
            begin: None,
            ranges_of_codes: Arc::default(),
            runs: Executions::default(),
            properties,
            map_stage: StageMetrics::default(),
            stage: StageMetrics::default(),
        }
    }

    /// The same exchange with the stage below in its map side.
    pub(crate) fn fused(mut self) -> Self {
        self.fused = true;
        self
    }

    /// The same exchange as one that several processes make, where it can be.
    pub(crate) fn distributed(&self) -> Option<Self> {
        if self.begin.is_some() || self.scheme.distributed().is_none() {
            return None;
        }
        let mut plan = self.over(Arc::clone(&self.input));
        (plan.input_order, plan.fused, plan.distributed) = (self.input_order.clone(), self.fused, true);
        Some(plan)
    }

    /// How several processes make it, if they are to.
    pub(crate) fn as_distributed(&self) -> Option<&dyn Distributed> {
        self.scheme.distributed().filter(|_| self.distributed)
    }

    /// What is exchanged.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How rows are distributed.
    pub(crate) fn scheme(&self) -> &Arc<dyn Scheme> {
        &self.scheme
    }

    /// Whether it gives blocks before its input has ended.
    pub(crate) fn streams(&self) -> bool {
        self.scheme.streams(&self.input)
    }

    /// Number of streams.
    pub(crate) fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }

    /// Whether the stage below belongs to the map side.
    pub(crate) fn is_fused(&self) -> bool {
        self.fused
    }

    /// Name of the stage that feeds the exchange.
    pub(crate) fn map_stage_name(&self) -> String {
        match as_task_plan(self.input.as_ref()) {
            Some(input) if self.fused => format!("{}->{}", input.stage_name(), self.scheme.map_name()),
            _ => self.scheme.map_name().to_owned(),
        }
    }

    fn start(&self, context: &Arc<TaskContext>) -> Arc<ExchangeRun> {
        self.map_stage.owner().describe(QueryPool::query_of(context), || self.map_stage_name());
        let balance = RowBalance::new(format!("ExchangeExec: {}", self.scheme), context);
        let input = MapInput {
            plan: Arc::clone(&self.input),
            context: Arc::clone(context),
            stage: self.map_stage.clone(),
            balance: Arc::clone(&balance),
            begin: self.begin,
        };
        let ranges_of_codes = Arc::clone(&self.ranges_of_codes);
        let scheme = Arc::clone(&self.scheme);
        let map_side = async move {
            let buckets = scheme.map_side(input).await?;
            ranges_of_codes.store(buckets.ranges_of_codes().unwrap_or(0), Release);
            Ok(buckets)
        };
        let buckets = async move {
            // Started by the first poll, on the threads of whoever polls.
            match Drivers::start([map_side]).next().await {
                Some(result) => result.map_err(Arc::new),
                None => internal_err!("the map side vanished").map_err(Arc::new),
            }
        };
        let first = self.begin.map_or(0, |first| first.task);
        Arc::new(ExchangeRun { buckets: buckets.boxed().shared(), next: AtomicUsize::new(first), balance })
    }
}

impl Operator for ExchangeExec {
    fn name(&self) -> &'static str {
        "ExchangeExec"
    }

    fn describe(&self) -> String {
        let first = self.begin.map_or_else(String::new, |first| format!(", first_task={} of {}", first.task, first.of));
        let by = if self.distributed { ", by executors" } else { "" };
        format!("{} => {}, scheme={}{first}{by}", self.map_stage_name(), self.scheme.reduce_name(), self.scheme)
    }

    fn describe_in_tree(&self) -> String {
        self.scheme.to_string()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        self.input_order.iter().collect()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut plan = self.over(inputs.swap_remove(0));
        plan.input_order = self.input_order.clone();
        plan.distributed = self.distributed;
        plan.fused = self.fused && as_task_plan(plan.input.as_ref()).is_some();
        plan.begin = self.begin;
        Ok(plan.into_plan())
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.scheme.keys(), f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.stage.metrics();
        let map_side = self.map_stage.metrics();
        let of_store =
            |name: &str| name == "blocks" || ["_bytes", "_micros", "_evictions"].iter().any(|end| name.ends_with(end));
        for metric in map_side.iter().filter(|m| of_store(m.value().name())) {
            metrics.push(Arc::clone(metric));
        }
        Some(metrics)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn starts(&self) -> Starts {
        Starts::WhenAsked
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: !self.streams() }
    }

    fn min_bytes(&self, batch_bytes: usize) -> Option<usize> {
        Some(self.partitions() * 2 * batch_bytes)
    }
}

impl TaskPlan for ExchangeExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let run = self.runs.join(partition, &context);
        let execution = match run.lock().join("an exchange", || Ok(self.start(&context)))? {
            Joined::Work(work) => work,
            Joined::Nothing(none) => return Ok(none.stream()),
        };
        let schema = self.schema();
        let tasks = stream::try_unfold((execution, schema, run), |(execution, schema, run)| async move {
            let buckets = execution.buckets.clone().await.map_err(DataFusionError::Shared)?;
            let mut output = execution.balance.output();
            let index = execution.next.fetch_add(1, AcqRel);
            let Some((id, batches)) = buckets.read(index).await? else {
                run.lock().ends();
                output.end()?;
                execution.balance.all_begun()?;
                return Ok(None);
            };
            run.lock().gives();
            let task = Task::new(id, output.of(stream_of(Arc::clone(&schema), batches)));
            Ok(Some((task, (execution, schema, run))))
        });
        Ok(tasks.boxed())
    }

    fn stage_name(&self) -> String {
        self.scheme.reduce_name().to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        self.scheme.identity(&self.input)
    }

    fn planned_blocks(&self) -> Option<usize> {
        self.scheme.planned_blocks(&self.input)
    }

    fn unsteady_order(&self) -> Option<&'static str> {
        self.scheme.unsteady_order(&self.input)
    }

    fn begins_anywhere(&self) -> bool {
        self.scheme.begins_at_tasks()
    }

    fn begins_with_inputs(&self) -> bool {
        false
    }

    fn reads_all_again(&self) -> bool {
        true
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let of = self.ranges_of_codes.load(Acquire);
        let numbers = vec![mark.id.task_of_source() as u64, of as u64];
        (of > 0).then(|| Place { numbers, skip: mark.row, ..Place::default() })
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let begin = match place.numbers.as_slice() {
            [task, of] if task < of && *of <= u64::from(u32::MAX) => {
                FirstTask { task: *task as usize, of: *of as usize }
            }
            _ => return exec_err!("the place is not one of {}", self.stage_name()),
        };
        self.ranges_of_codes.store(begin.of, Release);
        let mut begun = self.over(Arc::clone(&self.input));
        begun.input_order = self.input_order.clone();
        begun.fused = self.fused;
        begun.begin = Some(begin);
        begun.ranges_of_codes = Arc::clone(&self.ranges_of_codes);
        Ok(begun.into_plan())
    }

    fn map_side(&self) -> Option<MapSide<'_>> {
        let (stage, input) = (&self.map_stage, &self.input);
        Some(MapSide { name: self.map_stage_name(), stage, input, is_fused: self.fused })
    }
}
