//! What makes a dataset run, and what tells of it without running.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_err};
use datafusion::datasource::source_as_provider;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::TryStreamExt;

use super::Dataset;
use crate::functions::{Row, rows_of_batch};
use crate::observability::Execution;
use crate::physical::{collect_blocks, gather, planned_blocks};
use crate::runtime::in_background;
use crate::sources::{DatasourceTable, FileTable, StoredBlocks};
use crate::sql::plan_to_sql;
use crate::store::StoreUsage;

impl Dataset {
    /// Runs the dataset and streams its rows, in order. Dropping the stream cancels the work.
    pub async fn stream(&self) -> Result<SendableRecordBatchStream> {
        let (plan, execution) = self.start().await?;
        Ok(in_background(gather(&plan, self.state.task_ctx(), execution.result_usage())?))
    }

    /// The first `n` rows. Reads no more than that takes.
    pub async fn take_batch(&self, n: usize) -> Result<RecordBatch> {
        let limited = self.limit(n)?;
        let stream = limited.stream().await?;
        let schema = stream.schema();
        let batches: Vec<RecordBatch> = stream.try_collect().await?;
        *self.last.lock() = limited.last.lock().take();
        Ok(datafusion::arrow::compute::concat_batches(&schema, &batches)?)
    }

    /// The first `n` rows, typed by serde.
    pub async fn take<T: Row>(&self, n: usize) -> Result<Vec<T>> {
        rows_of_batch(&self.take_batch(n).await?)
    }

    /// All rows as batches, in order. They must fit in memory.
    pub async fn take_all(&self) -> Result<Vec<RecordBatch>> {
        self.stream().await?.try_collect().await
    }

    /// The first `n` rows as a text table.
    pub async fn show(&self, n: usize) -> Result<String> {
        Ok(pretty_format_batches(&[self.take_batch(n).await?])?.to_string())
    }

    /// Number of rows: from metadata where that is exact, else by running.
    pub async fn count(&self) -> Result<usize> {
        if let Some(blocks) = &self.materialized {
            return Ok(blocks.blocks().iter().map(|b| b.metadata().num_rows).sum());
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

    async fn count_by_metadata(&self) -> Result<Option<usize>> {
        let LogicalPlan::TableScan(scan) = &self.plan else {
            return Ok(None);
        };
        if scan.fetch.is_some() || !scan.filters.is_empty() {
            return Ok(None);
        }
        let provider = source_as_provider(&scan.source)?;
        if let Some(files) = provider.downcast_ref::<FileTable>() {
            return files.count_by_metadata(&self.state).await;
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
    pub async fn num_blocks(&self) -> Result<Option<usize>> {
        match &self.materialized {
            Some(blocks) => Ok(Some(blocks.blocks().len())),
            None => Ok(planned_blocks(&self.state.create_physical_plan(&self.plan).await?)),
        }
    }

    /// Bytes of all rows in memory. Runs the dataset unless it is materialized.
    pub async fn size_bytes(&self) -> Result<usize> {
        if let Some(blocks) = &self.materialized {
            return Ok(blocks.blocks().iter().map(|b| b.metadata().size_bytes).sum());
        }
        let bytes = |total, batch: RecordBatch| std::future::ready(Ok(total + crate::block::sliced_bytes(&batch)));
        self.stream().await?.try_fold(0, bytes).await
    }

    /// Paths of the files that the dataset reads.
    pub fn input_files(&self) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        self.plan.apply(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Some(files) = source_as_provider(&scan.source)?.downcast_ref::<FileTable>()
            {
                paths.extend(files.paths());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(paths)
    }

    /// Runs the dataset and keeps its blocks in the store, in memory or spilled, until the last clone of the result drops.
    pub async fn materialize(&self) -> Result<Self> {
        let (plan, _execution) = self.start().await?;
        let usage = Arc::new(StoreUsage::default());
        let stored = collect_blocks(&plan, &self.state.task_ctx(), &usage).await?;
        let handles = stored.into_iter().map(|block| block.handle).collect();
        let blocks = Arc::new(StoredBlocks::new("InputDataBuffer", self.schema(), handles));
        let mut dataset = self.context.read_datasource(Arc::clone(&blocks) as _, None)?;
        dataset.state = self.state.clone();
        dataset.materialized = Some(blocks);
        // A copy: what is run on the blocks later must not keep them alive through this dataset.
        *dataset.last.lock() = self.last.lock().clone();
        Ok(dataset)
    }

    /// The table that the dataset scans; an error unless it is a bare scan.
    pub(crate) fn table(&self) -> Result<Arc<dyn TableProvider>> {
        match &self.plan {
            LogicalPlan::TableScan(scan) => source_as_provider(&scan.source),
            _ => exec_err!("the dataset is not a table"),
        }
    }

    /// What the last execution did, stage by stage; empty before the first one.
    pub fn stats(&self) -> String {
        self.last.lock().as_ref().map_or(String::new(), Execution::report)
    }

    /// How the last execution stands, in one line; empty before the first one.
    pub fn status(&self) -> String {
        self.last.lock().as_ref().map_or(String::new(), Execution::status)
    }

    /// The logical plan as built, as optimized, and the physical plan.
    pub async fn explain(&self) -> Result<String> {
        let optimized = self.state.optimize(&self.plan)?;
        Ok(format!(
            "-- Logical plan --\n{}\n-- Optimized plan --\n{}\n-- Execution plan --\n{}",
            self.plan.display_indent(),
            optimized.display_indent(),
            self.execution_plan().await?
        ))
    }

    /// The physical plan, in which fused stages show as one operator.
    pub async fn execution_plan(&self) -> Result<String> {
        let plan = self.state.create_physical_plan(&self.plan).await?;
        Ok(displayable(plan.as_ref()).indent(false).to_string())
    }

    /// SQL text that gives the same rows. Fails where a part of the plan has no SQL form, such as a closure.
    pub fn to_sql(&self) -> Result<String> {
        plan_to_sql(&self.plan)
    }

    /// Plans an execution and remembers it for `stats`.
    async fn start(&self) -> Result<(Arc<dyn ExecutionPlan>, Execution)> {
        let plan = self.state.create_physical_plan(&self.plan).await?;
        let execution = Execution::start(Arc::clone(&plan), Arc::clone(self.context.store()));
        *self.last.lock() = Some(execution.clone());
        Ok((plan, execution))
    }
}
