//! Ray's `Write`: one file per block, committed when all of them are complete.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::future::ready;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::files::{FileJob, RowFiles};
use super::store::written_store;
use super::tasks::{WriteTasksExec, Writing, staged_by_tasks};
use crate::physical::operator::InputOrder;
use crate::physical::operator::{Operator, Retention};
use crate::physical::tasks::{RowBalance, measured_task_stream, properties, stream_of, ungathered};
use crate::runtime::Drivers;
use crate::sinks::{Begun, FileWriter, PartitionColumns, Staged, Staging, StagingArea, Target, WrittenFile};
use crate::store::BlockStore;

/// Writes its input and returns the number of rows.
#[derive(Debug)]
pub(crate) struct WriteExec {
    /// The rows, or what tells of the files that tasks have written.
    input: Arc<dyn ExecutionPlan>,
    /// The columns of the rows, where its input tells of files.
    told_of: Option<SchemaRef>,
    input_order: InputOrder,
    files: RowFiles,
    target: Target,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The files that were committed.
    committed: Arc<Mutex<Vec<WrittenFile>>>,
}

impl WriteExec {
    /// Writes `input` to `target`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, writer: FileWriter, target: Target) -> Self {
        Self::of_files(input, RowFiles { writer, by: None, max_bytes: None, max_rows: None }, target)
    }

    fn of_files(input: Arc<dyn ExecutionPlan>, files: RowFiles, target: Target) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new("count", DataType::UInt64, false)]));
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Final);
        let input_order = InputOrder::of(input.as_ref());
        let (metrics, committed) = (ExecutionPlanMetricsSet::new(), Arc::default());
        Self { input, told_of: None, input_order, files, target, properties, metrics, committed }
    }

    /// The files that were committed.
    pub(crate) fn files(&self) -> Vec<WrittenFile> {
        self.committed.lock().clone()
    }

    /// The same write with files of at most so many bytes of rows, as far as rows can be told apart.
    pub(crate) fn with_max_bytes(self, max_bytes: Option<usize>) -> Self {
        Self { files: RowFiles { max_bytes, ..self.files }, ..self }
    }

    /// The same write into the directories that the values of these columns are. Its input is sorted by them in each
    /// task. Files have at most `max_rows` rows, if that is said.
    pub(crate) fn partitioned_by(self, by: PartitionColumns, max_rows: Option<usize>) -> Self {
        Self { files: RowFiles { by: Some(by), max_rows, ..self.files }, ..self }
    }

    /// What its tasks can do by themselves; nothing where all rows go to one file.
    pub(crate) fn by_tasks(&self) -> Option<WriteTasksExec> {
        let is_possible = !self.target.single_file && self.files.said().is_some();
        is_possible.then(|| WriteTasksExec::new(Arc::clone(ungathered(&self.input)), self.files.clone()))
    }

    /// The same write of what tells of the files of its tasks.
    pub(crate) fn of_tasks(&self, told: Arc<dyn ExecutionPlan>) -> Self {
        let told_of = Some(self.input.schema());
        Self { told_of, ..Self::of_files(told, self.files.clone(), self.target.clone()) }
    }
}

impl Operator for WriteExec {
    fn name(&self) -> &'static str {
        "WriteExec"
    }

    fn describe(&self) -> String {
        let what = if self.target.single_file { "file" } else { "one file per block" };
        let RowFiles { by, max_bytes, max_rows, .. } = &self.files;
        let by = by.as_ref().map_or_else(String::new, |by| format!(", by=[{by}]"));
        let most = max_bytes.map_or_else(String::new, |most| format!(", max_bytes_per_file={most}"));
        let rows = max_rows.map_or_else(String::new, |most| format!(", max_rows_per_file={most}"));
        let (mode, url) = (&self.target.mode, &self.target.url);
        format!("{}, {what}{by}{rows}{most}, mode={mode}, to={url}", self.files.name())
    }

    fn describe_in_tree(&self) -> String {
        self.files.name()
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
        let plan = Self::of_files(inputs.swap_remove(0), self.files.clone(), self.target.clone());
        let (told_of, input_order) = (self.told_of.clone(), self.input_order.clone());
        Ok(Self { told_of, input_order, ..plan }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("WriteExec has one partition, not {partition}");
        }
        let balance = RowBalance::new(self.files.name(), &context);
        let job = Job {
            input: Arc::clone(&self.input),
            told_of: self.told_of.clone(),
            files: self.files.clone(),
            target: self.target.clone(),
            context,
            metrics: self.metrics.clone(),
            committed: Arc::clone(&self.committed),
            balance,
        };
        let schema = self.schema();
        let count = stream::once(async move {
            let rows = job.run().await?;
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

/// One execution of a write.
struct Job {
    input: Arc<dyn ExecutionPlan>,
    told_of: Option<SchemaRef>,
    files: RowFiles,
    target: Target,
    context: Arc<TaskContext>,
    metrics: ExecutionPlanMetricsSet,
    committed: Arc<Mutex<Vec<WrittenFile>>>,
    /// Rows that come, and rows that are in files.
    balance: Arc<RowBalance>,
}

impl Job {
    async fn run(self) -> Result<usize> {
        let store = written_store(&self.context, self.target.url.object_store())?;
        let staging: Arc<Staging> = match Staging::begin(store, self.target.clone()).await? {
            Begun::Write(staging) => staging.into(),
            Begun::LeaveIt => return Ok(0),
            Begun::Done(rows) => return Ok(rows),
        };
        // Should this process die, the next session finds what it leaves.
        let directories = Arc::clone(BlockStore::of_task(&self.context)?.directories());
        let _noted = staging.local_directory().map(|staged| directories.note(staged)).transpose()?;
        let written = match self.written(staging.area()).await {
            Ok(written) => written,
            Err(e) => {
                // The first error is the one to tell; what stays staged is hidden.
                let _aborted = staging.abort().await;
                return Err(e);
            }
        };
        let (rows, number) = (written.iter().map(|file| file.rows).sum(), written.len());
        let Some(files) = staging.commit(written).await? else { return Ok(0) };
        MetricBuilder::new(&self.metrics).output_rows(0).add(rows);
        MetricBuilder::new(&self.metrics).global_counter("files").add(number);
        self.committed.lock().extend(files);
        Ok(rows)
    }

    /// The files of all rows, which nobody can read yet.
    async fn written(&self, area: &Arc<StagingArea>) -> Result<Vec<Staged>> {
        let job = FileJob {
            files: self.files.clone(),
            area: Arc::clone(area),
            within: None,
            target_bytes: self.files.block_bytes(&self.context)?,
            context: Arc::clone(&self.context),
            metrics: self.metrics.clone(),
            balance: Arc::clone(&self.balance),
        };
        let written = match (&self.told_of, self.target.single_file) {
            // These compare the rows that they take and write by themselves.
            (Some(_), _) => self.written_by_tasks(&job).await?,
            (None, true) => job.one_file(&self.input).await?,
            (None, false) => job.all(ungathered(&self.input)).await?,
        };
        // What has no blocks still has columns, and is read again. (In directories, those of which value?)
        let written = match written.is_empty() && self.files.by.is_none() {
            true => {
                let schema = self.told_of.clone().unwrap_or_else(|| self.input.schema());
                job.file_of(&schema, stream::empty().boxed()).await?
            }
            false => written,
        };
        if self.told_of.is_none() {
            self.balance.give(written.iter().map(|file| file.rows).sum());
            self.balance.check()?;
        }
        Ok(written)
    }

    /// The files of tasks that write by themselves, wherever they run.
    async fn written_by_tasks(&self, job: &FileJob) -> Result<Vec<Staged>> {
        let context = Writing::new(&job.area, None, job.target_bytes).context(&self.context);
        let partitions = 0..self.input.output_partitioning().partition_count();
        let told = partitions.map(|partition| {
            let tasks = measured_task_stream(&self.input, partition, Arc::clone(&context))?;
            let told = tasks.map_ok(|task| task.batches).try_flatten();
            let area = Arc::clone(&job.area);
            let staged = move |told: RecordBatch| ready(staged_by_tasks(&told, &area));
            Ok(told.and_then(staged).try_concat())
        });
        let told = told.collect::<Result<Vec<_>>>()?;
        Ok(Drivers::start(told).finish().await?.into_iter().flatten().collect())
    }
}
