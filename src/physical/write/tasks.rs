//! [`WriteTasksExec`]: the part of a write that each task does by itself, also in another process.
//!
//! ```text
//! WriteExec          begins the write, and commits the files of all tasks
//!   RemoteExec
//!     WriteTasksExec     writes the rows of some tasks to files that nobody can read yet, and tells of these
//!       ReadExec
//! ```

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::cast::as_string_array;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, stream};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::files::{FileJob, RowFiles};
use crate::block::TaskId;
use crate::physical::operator::{IntoPlan, Operator, Retention};
use crate::physical::tasks::{RowBalance, properties, stream_of};
use crate::sinks::{OtherFile, Staged, StagingArea, StagingDirectory};

/// Where the tasks of a write put their files, as an extension of the configuration that they run with.
#[derive(Debug)]
pub(crate) struct Writing {
    area: Arc<StagingArea>,
    /// The number of what the tasks are within, where other processes have the rest of it.
    within: Option<usize>,
    target_bytes: usize,
    /// Whether other processes write, once that is known.
    elsewhere: OnceCell<bool>,
}

impl Writing {
    /// Into an area, files of about so many bytes of rows; of tasks that are within one of this number, if others have
    /// the rest of it.
    pub(crate) fn new(area: &Arc<StagingArea>, within: Option<usize>, target_bytes: usize) -> Self {
        Self { area: Arc::clone(area), within, target_bytes, elsewhere: OnceCell::new() }
    }

    /// The directory of the files.
    pub(crate) fn directory(&self) -> Result<&StagingDirectory> {
        let directory = self.area.directory();
        directory.ok_or_else(|| internal_datafusion_err!("only files of local disks are written by tasks"))
    }

    /// Bytes of the rows of a file.
    pub(crate) fn target_bytes(&self) -> usize {
        self.target_bytes
    }

    /// Whether other processes write; `asked` finds out once.
    pub(crate) async fn elsewhere(&self, asked: impl Future<Output = bool>) -> bool {
        *self.elsewhere.get_or_init(|| asked).await
    }

    /// Of a task, if it is one of a write.
    pub(crate) fn of(context: &TaskContext) -> Option<Arc<Self>> {
        context.session_config().get_extension::<Self>()
    }

    /// The context of tasks that write so.
    pub(crate) fn context(self, context: &TaskContext) -> Arc<TaskContext> {
        let mut config = context.session_config().clone();
        config.set_extension(Arc::new(self));
        Arc::new(TaskContext::new(
            context.task_id(),
            context.session_id(),
            config,
            context.scalar_functions().clone(),
            context.higher_order_functions().clone(),
            context.aggregate_functions().clone(),
            context.window_functions().clone(),
            context.runtime_env(),
        ))
    }
}

/// Writes the rows of its tasks to files that nobody can read yet, and gives a row for each file.
#[derive(Debug)]
pub(crate) struct WriteTasksExec {
    input: Arc<dyn ExecutionPlan>,
    files: RowFiles,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl WriteTasksExec {
    /// Writes `input` so.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, files: RowFiles) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new("file", DataType::Utf8, false)]));
        let partitions = input.output_partitioning().partition_count();
        let properties = properties(EquivalenceProperties::new(schema), partitions, EmissionType::Final);
        Self { input, files, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whose rows are written.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How they become files.
    pub(crate) fn files(&self) -> &RowFiles {
        &self.files
    }
}

impl Operator for WriteTasksExec {
    fn name(&self) -> &'static str {
        "WriteTasksExec"
    }

    fn describe(&self) -> String {
        let most = self.files.max_bytes.map_or_else(String::new, |most| format!(", max_bytes_per_file={most}"));
        format!("{}, one file per block{most}", self.files.name())
    }

    fn describe_in_tree(&self) -> String {
        self.files.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.files.clone()).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(writing) = Writing::of(&context) else {
            return internal_err!("tasks of a write run below one");
        };
        let balance = RowBalance::new(self.files.name(), &context);
        let job = FileJob {
            files: self.files.clone(),
            area: Arc::clone(&writing.area),
            within: writing.within,
            target_bytes: writing.target_bytes,
            context,
            metrics: self.metrics.clone(),
            balance: Arc::clone(&balance),
        };
        let (input, schema) = (Arc::clone(&self.input), self.schema());
        let told = stream::once(async move {
            let staged = job.partition(&input, partition)?.await?;
            balance.give(staged.iter().map(|file| file.rows).sum());
            balance.check()?;
            told_of(staged, writing.directory()?, schema)
        });
        Ok(stream_of(self.schema(), told.boxed()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: false }
    }

    fn min_bytes(&self, batch_bytes: usize) -> Option<usize> {
        Some(self.input.output_partitioning().partition_count() * 2 * batch_bytes)
    }
}

/// What is told of a staged file, in JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    id: Vec<u32>,
    rows: usize,
    directory: String,
    name: String,
    bytes: u64,
}

/// A row for each file.
fn told_of(staged: Vec<Staged>, area: &StagingDirectory, schema: SchemaRef) -> Result<RecordBatch> {
    let text = |file: Staged| {
        let bytes = std::fs::metadata(area.file_of(&file.id))?.len();
        let told = Told {
            name: area.name_of(&file.id),
            id: file.id.parts().to_vec(),
            rows: file.rows,
            directory: file.directory.to_string(),
            bytes,
        };
        serde_json::to_string(&told).map_err(|e| internal_datafusion_err!("{e}"))
    };
    let texts = staged.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(texts))])?)
}

/// The files that rows tell of.
pub(super) fn staged_by_tasks(told: &RecordBatch) -> Result<Vec<Staged>> {
    let texts = as_string_array(told.column(0))?;
    let file = |text: Option<&str>| {
        let told: Told = serde_json::from_str(text.unwrap_or_default())
            .map_err(|e| internal_datafusion_err!("what tells of a file makes no sense: {e}"))?;
        // Nothing but a file in the directory of the write.
        if told.name.contains(['/', '\\']) || told.name.starts_with('.') {
            return internal_err!("'{}' is no name of a file", told.name);
        }
        let elsewhere = Some(OtherFile { name: told.name, bytes: told.bytes });
        Ok(Staged { id: TaskId::from(told.id), rows: told.rows, directory: Path::from(told.directory), elsewhere })
    };
    texts.iter().map(file).collect()
}
