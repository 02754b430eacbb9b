//! [`ExchangeExec`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};

use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::Distribution;
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PhysicalExpr, PlanProperties,
    ReplaceChildrenOptions,
};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::cutter::{BlockSize, Cutter};
use super::hashed::{self, Hashed};
use super::random::{self, Shuffled};
use super::slices::{self, Slice};
use super::sorted::{self, Sorted};
use super::window::Window;
use super::{ExchangeScheme, StoredBlock, collect_blocks};
use crate::block::TaskId;
use crate::physical::StageMetrics;
use crate::physical::claims;
use crate::physical::conservation::RowBalance;
use crate::physical::executions::{Executions, Run};
use crate::physical::gather::{PIECE_BYTES, blocks_in_order, ungathered};
use crate::physical::input_order::InputOrder;
use crate::physical::memory::block_bytes;
use crate::physical::steady::steady_parts;
use crate::physical::tasks::{Task, TaskPlan, TaskStream, as_task_plan, execute_tasks, properties, stream_of};
use crate::runtime::Drivers;
use crate::store::{NextUse, QueryPool};

/// Moves rows between tasks by an [`ExchangeScheme`].
#[derive(Debug)]
pub(crate) struct ExchangeExec {
    input: Arc<dyn ExecutionPlan>,
    scheme: ExchangeScheme,
    input_order: Option<InputOrder>,
    /// Whether the stage below belongs to the map side.
    fused: bool,
    runs: Executions<Mutex<Run<Execution>>>,
    properties: Arc<PlanProperties>,
    map_stage: StageMetrics,
    stage: StageMetrics,
}

/// One execution. When the last of the streams drops, the map side is cancelled and its blocks go.
struct Execution {
    buckets: Shared<BoxFuture<'static, Result<Buckets, Arc<DataFusionError>>>>,
    next: AtomicUsize,
    balance: Arc<RowBalance>,
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Execution(next={})", self.next.load(Relaxed))
    }
}

#[derive(Clone)]
enum Buckets {
    /// Each is taken by whoever reads it, so that its blocks are freed as it goes.
    Slices(Arc<Vec<Mutex<Vec<Slice>>>>),
    Random(Arc<Shuffled>),
    Hash(Arc<Hashed>),
    Sorted(Arc<Sorted>),
    /// They are made when they are asked for.
    Streamed(Arc<AsyncMutex<Streamed>>),
}

/// Buckets that are there before the input has ended.
enum Streamed {
    Cut(Cutter),
    Window(Window),
}

impl Streamed {
    async fn next(&mut self) -> Result<Option<(usize, Vec<Slice>)>> {
        match self {
            Self::Cut(cutter) => cutter.next().await,
            Self::Window(window) => window.next().await,
        }
    }
}

impl ExchangeExec {
    /// An exchange of the rows of `input`, with `partitions` streams.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, scheme: ExchangeScheme, partitions: usize) -> Self {
        let emission = match scheme {
            ExchangeScheme::Sized(_) | ExchangeScheme::BlockOrder { window: Some(_), .. } => EmissionType::Incremental,
            _ => EmissionType::Final,
        };
        let properties = properties(claims::of_rows(input.as_ref()), partitions, emission);
        // A sort does not care for the order, so a sort below it may go. Shuffled rows are told apart by their places.
        let ordered = !matches!(scheme, ExchangeScheme::Range { .. });
        let input_order = ordered.then(|| InputOrder::of(input.as_ref()));
        Self {
            input,
            scheme,
            input_order,
            fused: false,
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

    /// What is exchanged.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How rows are distributed.
    pub(crate) fn scheme(&self) -> &ExchangeScheme {
        &self.scheme
    }

    /// Where blocks end, if that is known before the last row has come: the first block does not wait for it.
    fn cuts(&self) -> Option<BlockSize> {
        match self.scheme {
            ExchangeScheme::Sized(size) => Some(size),
            ExchangeScheme::Slices { num_blocks } => {
                exact_rows(&self.input).map(|total_rows| BlockSize::Parts { num_blocks, total_rows })
            }
            _ => None,
        }
    }

    /// Whether it gives blocks before its input has ended.
    pub(crate) fn streams(&self) -> bool {
        matches!(self.scheme, ExchangeScheme::BlockOrder { window: Some(_), .. }) || self.cuts().is_some()
    }

    /// Number of streams.
    pub(crate) fn partitions(&self) -> usize {
        self.properties.partitioning.partition_count()
    }

    /// Whether the stage below belongs to the map side.
    pub(crate) fn is_fused(&self) -> bool {
        self.fused
    }

    /// What the map side did.
    pub(crate) fn map_stage(&self) -> &StageMetrics {
        &self.map_stage
    }

    /// Name of the stage that feeds the exchange.
    pub(crate) fn map_stage_name(&self) -> String {
        match as_task_plan(self.input.as_ref()) {
            Some(input) if self.fused => format!("{}->{}", input.stage_name(), self.scheme.map_name()),
            _ => self.scheme.map_name().to_owned(),
        }
    }

    fn start(&self, context: &Arc<TaskContext>) -> Arc<Execution> {
        let (input, scheme, stage) = (Arc::clone(&self.input), self.scheme.clone(), self.map_stage.clone());
        let context = Arc::clone(context);
        stage.owner().describe(QueryPool::query_of(&context), || self.map_stage_name());
        let cuts = self.cuts();
        let balance = RowBalance::new(format!("ExchangeExec: {}", self.scheme), &context);
        let balanced = Arc::clone(&balance);
        // Without an order each block is for itself.
        let parts_of = |plan: &Arc<dyn ExecutionPlan>| steady_parts(plan).unwrap_or(usize::MAX);
        let (parts, parts_of_input) = (parts_of(ungathered(&input)), parts_of(&input));
        let map_side = async move {
            if let Some(size) = cuts {
                // Blocks of the input matter only where they stay what they are.
                let bytes = match size {
                    BlockSize::Rows { strict: false, .. } => block_bytes(&context)?,
                    _ => PIECE_BYTES,
                };
                let blocks = blocks_in_order(&input, &context, stage.owner(), bytes, &balanced)?;
                let blocks = blocks.map_ok(move |(id, handle)| (id.first_parts(parts_of_input), handle)).boxed();
                return Ok(Buckets::Streamed(Arc::new(AsyncMutex::new(Streamed::Cut(Cutter::new(blocks, size))))));
            }
            match scheme {
                ExchangeScheme::Random { seed, num_blocks } => {
                    let shuffled = random::map_side(&input, &context, &stage, seed, num_blocks).await?;
                    balanced.take(shuffled.num_rows());
                    return Ok(Buckets::Random(Arc::new(shuffled)));
                }
                ExchangeScheme::Hash { keys, num_blocks, sort } => {
                    let hashed = hashed::map_side(&input, &context, &stage, keys, num_blocks, sort).await?;
                    balanced.take(hashed.num_rows());
                    return Ok(Buckets::Hash(Arc::new(hashed)));
                }
                ExchangeScheme::Range { order, boundaries } => {
                    let sorted = sorted::map_side(&input, &context, &stage, &order, boundaries.as_deref()).await?;
                    balanced.take(sorted.num_rows());
                    return Ok(Buckets::Sorted(Arc::new(sorted)));
                }
                ExchangeScheme::BlockOrder { seed, window: Some(size) } => {
                    let (input, bytes) = (ungathered(&input), block_bytes(&context)?);
                    let blocks = blocks_in_order(input, &context, stage.owner(), bytes, &balanced)?;
                    let blocks = blocks.map_ok(|(id, handle)| StoredBlock { id, handle }).boxed();
                    let window = Streamed::Window(Window::new(blocks, parts, seed, size));
                    return Ok(Buckets::Streamed(Arc::new(AsyncMutex::new(window))));
                }
                _ => {}
            }
            let blocks = collect_blocks(&input, &context, NextUse::AfterInput, stage.owner()).await?;
            balanced.take(blocks.iter().map(|block| block.handle.metadata().num_rows).sum());
            let buckets = slices::buckets(&scheme, blocks, parts).into_iter().map(Mutex::new).collect();
            Ok(Buckets::Slices(Arc::new(buckets)))
        };
        let buckets = async move {
            // Started by the first poll, on the threads of whoever polls.
            match Drivers::start([map_side]).next().await {
                Some(result) => result.map_err(Arc::new),
                None => internal_err!("the map side vanished").map_err(Arc::new),
            }
        };
        Arc::new(Execution { buckets: buckets.boxed().shared(), next: AtomicUsize::new(0), balance })
    }
}

/// The number of rows of a plan, if that is certain.
fn exact_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    match statistics.num_rows {
        Precision::Exact(rows) => Some(rows),
        Precision::Inexact(_) | Precision::Absent => None,
    }
}

impl DisplayAs for ExchangeExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "{}", self.scheme),
            _ => write!(
                f,
                "ExchangeExec: {} => {}, scheme={}",
                self.map_stage_name(),
                self.scheme.reduce_name(),
                self.scheme
            ),
        }
    }
}

impl ExecutionPlan for ExchangeExec {
    fn name(&self) -> &str {
        "ExchangeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.input_order.as_ref().map_or_else(|| vec![None], InputOrder::ordering)
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let any = || InputDistributionRequirements::new(vec![Distribution::UnspecifiedDistribution]);
        self.input_order.as_ref().map_or_else(any, InputOrder::distribution)
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut plan = Self::new(children.swap_remove(0), self.scheme.clone(), self.partitions());
        plan.input_order = self.input_order.clone();
        plan.fused = self.fused && as_task_plan(plan.input.as_ref()).is_some();
        Ok(Arc::new(plan))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let keys: Vec<_> = match &self.scheme {
            ExchangeScheme::Hash { keys, .. } => keys.iter().collect(),
            ExchangeScheme::Range { order, .. } => order.iter().map(|key| &key.expr).collect(),
            _ => Vec::new(),
        };
        for key in keys {
            if f(key)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        crate::physical::recompute_children(self, children)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
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
}

impl TaskPlan for ExchangeExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let run = self.runs.join(partition, &context);
        let Some(execution) = run.lock().join("an exchange", || Ok(self.start(&context)))? else {
            return Ok(stream::empty().boxed());
        };
        let schema = self.schema();
        let tasks = stream::try_unfold((execution, schema, run), |(execution, schema, run)| async move {
            let buckets = execution.buckets.clone().await.map_err(DataFusionError::Shared)?;
            let mut output = execution.balance.output();
            let mut id = TaskId::root(execution.next.fetch_add(1, AcqRel));
            let index = id.task_of_source();
            let batches = match &buckets {
                Buckets::Streamed(streamed) => match streamed.lock().await.next().await? {
                    Some((number, bucket)) => {
                        id = TaskId::root(number);
                        Some(slices::read(bucket))
                    }
                    None => None,
                },
                Buckets::Slices(buckets) => {
                    buckets.get(index).map(|bucket| slices::read(std::mem::take(&mut *bucket.lock())))
                }
                Buckets::Random(runs) => (index < runs.num_tasks()).then(|| Arc::clone(runs).read(index)),
                Buckets::Sorted(runs) => (index < runs.num_tasks()).then(|| Arc::clone(runs).read(index)),
                Buckets::Hash(runs) => (index < runs.num_tasks()).then(|| {
                    id = runs.id_of(index);
                    Arc::clone(runs).read(index)
                }),
            };
            let Some(batches) = batches else {
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
}
