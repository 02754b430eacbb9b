//! What makes a dataset run, and what tells of it without running.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use datafusion::datasource::source_as_provider;
use datafusion::execution::session_state::SessionState;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::{StreamExt, TryStreamExt, stream};

use super::Dataset;
use crate::config::BlockyardOptions;
use crate::error::without_bug_report;
use crate::functions::{Row, rows_of_batch};
use crate::logical::{check_plan_depth, is_endless, plan_of_epoch};
use crate::observability::{Execution, Watch};
use crate::optimizer::in_least_memory;
use crate::physical::{
    PlanExt, PlanMemory, StoredBlock, assigned, collect_blocks, fitting_executors, gather, planned_blocks,
    query_context,
};
use crate::runtime::{DeepStack, block_on_io, in_background};
use crate::sources::{DatasourceTable, StoredBlocks, StoredTable, files_of};
use crate::store::{Admission, NextUse, Owner};

impl Dataset {
    /// Runs the dataset and streams its rows, in order. Dropping the stream cancels the work.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned, or needs more memory than there is. What fails later is an error of the
    /// stream.
    pub async fn stream(&self) -> Result<SendableRecordBatchStream> {
        let attempt = self.attempt()?;
        let mut first = self.stream_once(&attempt).await?;
        let (schema, dataset) = (first.schema(), self.clone());
        let batches = stream::once(async move {
            match first.next().await {
                Some(Err(e)) if is_kept_in_vain(&e) => {
                    drop(first);
                    dataset.stream_once(&dataset.again_with_spilling(attempt)).await
                }
                head => {
                    let schema = first.schema();
                    let batches = stream::iter(head).chain(first);
                    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)) as SendableRecordBatchStream)
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches.try_flatten())))
    }

    async fn stream_once(&self, attempt: &Attempt) -> Result<SendableRecordBatchStream> {
        let Started { plan, context, execution, mut watch, admission, .. } = self.start(attempt).await?;
        let batches = gather(&plan, context, execution.result_owner());
        watch.ended_if_failed(&batches);
        let batches = batches?;
        let schema = batches.schema();
        // The admission is held until the end.
        let watched = watch.over(batches, admission, RecordBatch::num_rows);
        Ok(in_background(Box::pin(RecordBatchStreamAdapter::new(schema, watched))))
    }

    /// The number of the next execution.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epochs.fetch_add(1, Relaxed)
    }

    /// The next execution.
    pub(super) fn attempt(&self) -> Result<Attempt> {
        self.attempt_of(self.next_epoch())
    }

    pub(super) fn attempt_of(&self, epoch: u64) -> Result<Attempt> {
        Ok(Attempt { plan: plan_of_epoch(self.plan.clone(), epoch)?, state: self.state.clone(), before: None })
    }

    /// The same execution with settings under which no join fails because its build side does not fit, and no sort
    /// because the first rows do not.
    pub(super) fn again_with_spilling(&self, mut attempt: Attempt) -> Attempt {
        let mut options = BlockyardOptions::from_config(attempt.state.config_options());
        options.prefer_spilling_joins = true;
        options.prefer_spilling_sorts = true;
        attempt.state.config_mut().options_mut().extensions.insert(options);
        attempt.before = self.last.lock().as_ref().map(Execution::elapsed);
        attempt
    }

    /// The first `n` rows. Reads no more than that takes.
    ///
    /// # Errors
    ///
    /// Where the plan is refused for its need of memory, or something fails while it runs.
    pub async fn take_batch(&self, n: usize) -> Result<RecordBatch> {
        let limited = self.limit(n)?;
        let stream = limited.stream().await?;
        let schema = stream.schema();
        let batches: Vec<RecordBatch> = stream.try_collect().await?;
        *self.last.lock() = limited.last.lock().take();
        Ok(datafusion::arrow::compute::concat_batches(&schema, &batches)?)
    }

    /// The first `n` rows, typed by serde.
    ///
    /// # Errors
    ///
    /// As [`Dataset::take_batch`], and where a row is no `T`.
    pub async fn take<T: Row>(&self, n: usize) -> Result<Vec<T>> {
        rows_of_batch(&self.take_batch(n).await?)
    }

    /// All rows as batches, in order. They must fit in memory.
    ///
    /// # Errors
    ///
    /// Where the plan is refused for its need of memory, or something fails while it runs.
    pub async fn take_all(&self) -> Result<Vec<RecordBatch>> {
        self.check_ends("take_all")?;
        self.stream().await?.try_collect().await
    }

    /// The first `n` rows as a text table.
    ///
    /// # Errors
    ///
    /// Where the plan is refused for its need of memory, or something fails while it runs.
    pub async fn show(&self, n: usize) -> Result<String> {
        Ok(pretty_format_batches(&[self.take_batch(n).await?])?.to_string())
    }

    /// Number of rows: from metadata where that is exact, else by running.
    ///
    /// # Errors
    ///
    /// Where the plan is refused for its need of memory, or something fails while it runs.
    pub async fn count(&self) -> Result<usize> {
        if let Some(blocks) = &self.materialized {
            return Ok(blocks.total_rows());
        }
        if let Some(rows) = self.count_by_metadata().await? {
            return Ok(rows);
        }
        let count = datafusion::functions_aggregate::expr_fn::count(datafusion::logical_expr::lit(1));
        let counted = self.via_dataframe(|frame| frame.aggregate(vec![], vec![count]))?;
        let batches = counted.take_all().await?;
        *self.last.lock() = counted.last.lock().take();
        match batches.first() {
            Some(batch) => Ok(batch.column(0).as_primitive::<Int64Type>().value(0) as usize),
            None => exec_err!("count returned no rows"),
        }
    }

    pub(super) async fn count_by_metadata(&self) -> Result<Option<usize>> {
        let LogicalPlan::TableScan(scan) = &self.plan else {
            return Ok(None);
        };
        if scan.fetch.is_some() || !scan.filters.is_empty() {
            return Ok(None);
        }
        let provider = source_as_provider(&scan.source)?;
        if let Some(files) = files_of(provider.as_ref()) {
            return files.count_by_metadata(&self.state).await;
        }
        if let Some(table) = provider.downcast_ref::<StoredTable>() {
            return Ok(Some(table.num_rows()));
        }
        let source = provider.downcast_ref::<DatasourceTable>();
        Ok(source.and_then(|table| table.num_rows()))
    }

    /// Names and types of the columns. Nothing runs.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(self.plan.schema().as_arrow().clone())
    }

    /// Names of the columns.
    pub fn columns(&self) -> Vec<String> {
        self.plan.schema().fields().iter().map(|f| f.name().clone()).collect()
    }

    /// Number of blocks: exact for a materialized dataset, else as planned, or `None` where only running tells.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned.
    pub async fn num_blocks(&self) -> Result<Option<usize>> {
        match &self.materialized {
            Some(blocks) => Ok(Some(blocks.num_blocks())),
            None => Ok(planned_blocks(&self.state.create_physical_plan(&self.plan).await?)),
        }
    }

    /// Bytes of all rows in memory. Runs the dataset unless it is materialized.
    ///
    /// # Errors
    ///
    /// Where the plan is refused for its need of memory, or something fails while it runs.
    pub async fn size_bytes(&self) -> Result<usize> {
        self.check_ends("size_bytes")?;
        if let Some(blocks) = &self.materialized {
            return Ok(blocks.size_bytes());
        }
        let bytes = |total, batch: RecordBatch| std::future::ready(Ok(total + crate::block::sliced_bytes(&batch)));
        self.stream().await?.try_fold(0, bytes).await
    }

    /// Paths of the files that the dataset reads.
    ///
    /// # Errors
    ///
    /// Where files cannot be listed.
    pub fn input_files(&self) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        self.plan.apply(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Some(files) = files_of(source_as_provider(&scan.source)?.as_ref())
            {
                paths.extend(block_on_io(files.input_files(Arc::clone(self.state.runtime_env())))?);
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(paths)
    }

    /// Runs the dataset and keeps its blocks in the store, in memory or spilled, until the last clone of the result
    /// drops.
    ///
    /// # Errors
    ///
    /// As [`Dataset::take_all`], and where the disk is full.
    pub async fn materialize(&self) -> Result<Self> {
        self.check_ends("materialize")?;
        let attempt = self.attempt()?;
        let stored = match self.collect_once(&attempt).await {
            Err(e) if is_kept_in_vain(&e) => self.collect_once(&self.again_with_spilling(attempt)).await?,
            stored => stored?,
        };
        let handles = stored.into_iter().map(|block| block.handle).collect();
        let dataset = self.of_blocks(StoredBlocks::new("InputDataBuffer", self.schema(), handles))?;
        // A copy: what is run on the blocks later must not keep them alive through this dataset.
        *dataset.last.lock() = self.last.lock().clone();
        Ok(dataset)
    }

    /// Fails where all rows are needed, and there is no end of them.
    fn check_ends(&self, what: &str) -> Result<()> {
        match is_endless(&self.plan)? {
            true => {
                plan_err!("{what} needs all rows of an endless pipeline; repeat it so many times, or limit it before")
            }
            false => Ok(()),
        }
    }

    /// A dataset of blocks, with the settings of this one.
    pub(super) fn of_blocks(&self, blocks: StoredBlocks) -> Result<Self> {
        let blocks = Arc::new(blocks);
        let mut dataset = self.context.read_datasource(Arc::clone(&blocks) as _, None)?;
        dataset.state = self.state.clone();
        dataset.materialized = Some(blocks);
        Ok(dataset)
    }

    async fn collect_once(&self, attempt: &Attempt) -> Result<Vec<StoredBlock>> {
        let Started { plan, context, execution, mut watch, admission: _admission, .. } = self.start(attempt).await?;
        let owner = Arc::new(Owner::default());
        owner.describe(execution.query(), || "Materialize".to_owned());
        let collected = collect_blocks(&plan, &context, NextUse::Kept, &owner).await;
        watch.ended(collected.as_ref().map(drop).map_err(ToString::to_string));
        collected
    }

    /// What the last execution did, stage by stage; empty before the first one.
    pub fn stats(&self) -> String {
        self.last.lock().as_ref().map_or(String::new(), Execution::report)
    }

    /// How the last execution stands, in one line; empty before the first one.
    pub fn status(&self) -> String {
        self.last.lock().as_ref().map_or(String::new(), Execution::status)
    }

    /// Which failures the last execution has tolerated, a line for each stage: rows that failed, tasks that gave up,
    /// calls and reads that were tried again, with the first error.
    pub fn failures(&self) -> Option<String> {
        self.last.lock().as_ref().and_then(Execution::failures)
    }

    /// How the last execution stands, in several lines: one for all of it, one for each stage with its tasks, actors,
    /// queued blocks and what holds it back, and one for each task that seems to hang. Empty before the first
    /// execution.
    pub fn progress(&self) -> Vec<String> {
        self.last.lock().as_ref().map_or(Vec::new(), Execution::progress)
    }

    /// The logical plan as built, as optimized, and the physical plan.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned.
    pub async fn explain(&self) -> Result<String> {
        let optimized = self.state.optimize(&self.plan)?;
        let plan = self.state.create_physical_plan(&self.plan).await?;
        let (limit, threads) = (self.context.store().budget().limit(), self.state.config().target_partitions());
        let mut windows = String::new();
        plan.apply(|node| {
            let lines = node.as_operator().map(|operator| operator.warnings(limit, threads)).unwrap_or_default();
            if !lines.is_empty() {
                windows.push_str(&format!("-- {} --\n{}\n", node.name(), lines.join("\n")));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(format!(
            "-- Logical plan --\n{}\n-- Optimized plan --\n{}\n-- Execution plan --\n{}{windows}-- Memory --\n{}\n",
            self.plan.display_indent(),
            optimized.display_indent(),
            displayable(plan.as_ref()).indent(false),
            self.explain_memory().await?
        ))
    }

    /// The least memory in which the dataset can run, and what takes most of it.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned.
    pub async fn explain_memory(&self) -> Result<String> {
        let plan = match &self.plan {
            LogicalPlan::Explain(explain) => self.state.create_physical_plan(&explain.plan).await?,
            LogicalPlan::Analyze(analyze) => self.state.create_physical_plan(&analyze.input).await?,
            plan => self.state.create_physical_plan(plan).await?,
        };
        let plan = in_least_memory(plan)?;
        Ok(PlanMemory::min_of(plan.as_ref(), self.state.config().batch_size()).to_string())
    }

    /// The physical plan, in which fused stages show as one operator.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned.
    pub async fn execution_plan(&self) -> Result<String> {
        let plan = self.state.create_physical_plan(&self.plan).await?;
        Ok(displayable(plan.as_ref()).indent(false).to_string())
    }

    /// Plans an execution and remembers it for `stats`.
    pub(super) async fn start(&self, attempt: &Attempt) -> Result<Started> {
        self.start_at(attempt, |plan| Ok(Arc::clone(plan))).await
    }

    /// The same of what `begin` makes of the plan, which begins in the middle of it.
    pub(super) async fn start_at(
        &self,
        attempt: &Attempt,
        begin: impl FnOnce(&Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
    ) -> Result<Started> {
        check_plan_depth(&attempt.plan)?;
        let fitting = fitting_executors(&attempt.state).await?;
        let state = fitting.as_ref().unwrap_or(&attempt.state);
        let planned = DeepStack::new(state.create_physical_plan(&attempt.plan)).await;
        let planned = planned.map_err(without_bug_report)?;
        let (plan, elsewhere) = assigned(begin(&planned)?, state.config()).await?;
        let context = TaskContext::from(state);
        let store = Arc::clone(self.context.store());
        let execution = Execution::start(Arc::clone(&plan), store, &context, attempt.before);
        let mut watch = execution.watch()?;
        let admitted = query_context(context, plan.as_ref(), execution.query()).await;
        watch.ended_if_failed(&admitted);
        let (context, admission) = admitted?;
        let admission = admission.holding(elsewhere);
        *self.last.lock() = Some(execution.clone());
        Ok(Started { planned, plan, context, execution, watch, admission })
    }
}

/// A plan to be run, and how.
pub(super) struct Attempt {
    plan: LogicalPlan,
    pub(super) state: SessionState,
    /// How long another plan ran that failed.
    before: Option<Duration>,
}

/// A plan that is about to run.
pub(super) struct Started {
    /// The plan from its first row on, and the one that runs.
    pub(super) planned: Arc<dyn ExecutionPlan>,
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) context: Arc<TaskContext>,
    pub(super) execution: Execution,
    pub(super) watch: Watch,
    /// The memory that is promised to it, as long as it is held.
    pub(super) admission: Admission,
}

/// Whether a query failed because the build side of a hash join, or the first rows of a sort, did not fit.
pub(super) fn is_kept_in_vain(error: &DataFusionError) -> bool {
    let keeps = |text: &str| ["HashJoinInput", "TopK["].iter().any(|keeper| text.starts_with(keeper));
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(text) if keeps(text))
}
