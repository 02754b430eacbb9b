//! [`WriteTasksExec`]: the part of a write that each task does by itself, also in another process.
//!
//! ```text
//! WriteExec          begins the write, and commits the files of all tasks
//!   RemoteExec
//!     WriteTasksExec     writes the rows of some tasks to files that nobody can read yet, and tells of these
//!       ReadExec
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::cast::as_string_array;
use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, stream};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::files::{FileJob, RowFiles};
use super::store::written_store;
use crate::block::TaskId;
use crate::physical::operator::{IntoPlan, Operator, Retention};
use crate::physical::tasks::{RowBalance, properties, stream_of};
use crate::sinks::{OtherFile, Staged, StagingArea, StagingDirectory, UploadArea, UploadPlaces, UploadedFile};

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

    /// Where other processes put files; none where they cannot.
    pub(crate) fn place(&self) -> Option<WritePlace> {
        match self.area.as_ref() {
            StagingArea::Directory(directory) => Some(WritePlace::Directory {
                path: directory.path().to_owned(),
                extension: directory.extension().to_owned(),
            }),
            StagingArea::Uploads(area) => area.shared().map(|places| WritePlace::Uploads(places.clone())),
        }
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

/// Where the tasks of a write put their files, as other processes know it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum WritePlace {
    /// A directory that is there until the write has all files, or is given up.
    Directory {
        path: PathBuf,
        /// The ending of the files.
        extension: String,
    },
    /// An object store.
    Uploads(UploadPlaces),
}

impl WritePlace {
    /// The area of an attempt of this number there.
    pub(crate) fn area(self, context: &TaskContext, attempt: u64) -> Result<StagingArea> {
        match self {
            Self::Directory { path, extension } => Ok(StagingDirectory::new(path, &extension, Some(attempt)).into()),
            Self::Uploads(places) => {
                let uploads = uploads_to(&places, context)?;
                Ok(StagingArea::Uploads(Box::new(UploadArea::elsewhere(uploads, places))))
            }
        }
    }

    /// Sees whether this process can write there, by a file that is gone then.
    pub(crate) async fn try_out(&self, context: &TaskContext, attempt: u64) -> Result<()> {
        match self {
            Self::Directory { path, .. } => {
                let file = path.join(format!("{attempt}-seen"));
                tokio::fs::File::create_new(&file).await?;
                Ok(tokio::fs::remove_file(&file).await?)
            }
            Self::Uploads(places) => places.try_out(uploads_to(places, context)?.as_ref(), attempt).await,
        }
    }
}

/// What takes uploads of several processes.
fn uploads_to(places: &UploadPlaces, context: &TaskContext) -> Result<Arc<dyn MultipartStore>> {
    let store = written_store(context, ObjectStoreUrl::parse(places.store())?)?;
    store.uploads.ok_or_else(|| exec_datafusion_err!("'{}' takes no uploads of several processes", places.store()))
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
            told_of(staged, &writing.area, schema)
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
    file: ToldFile,
}

/// Where it is until the write is committed.
#[derive(Debug, Serialize, Deserialize)]
enum ToldFile {
    Named { name: String, bytes: u64 },
    Uploaded(UploadedFile),
}

/// A row for each file.
fn told_of(staged: Vec<Staged>, area: &StagingArea, schema: SchemaRef) -> Result<RecordBatch> {
    let text = |staged: Staged| {
        let file = match area {
            StagingArea::Directory(directory) => {
                let bytes = std::fs::metadata(directory.file_of(&staged.id))?.len();
                ToldFile::Named { name: directory.name_of(&staged.id), bytes }
            }
            StagingArea::Uploads(area) => ToldFile::Uploaded(area.hand_over(&staged)?),
        };
        let (id, directory) = (staged.id.parts().to_vec(), staged.directory.to_string());
        let told = Told { id, rows: staged.rows, directory, file };
        serde_json::to_string(&told).map_err(|e| internal_datafusion_err!("{e}"))
    };
    let texts = staged.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(schema, vec![Arc::new(StringArray::from(texts))])?)
}

/// The files that rows tell of, which belong to the write of an area now.
pub(super) fn staged_by_tasks(told: &RecordBatch, area: &StagingArea) -> Result<Vec<Staged>> {
    let texts = as_string_array(told.column(0))?;
    let file = |text: Option<&str>| {
        let told: Told = serde_json::from_str(text.unwrap_or_default())
            .map_err(|e| internal_datafusion_err!("what tells of a file makes no sense: {e}"))?;
        let (id, directory) = (TaskId::from(told.id), Path::parse(told.directory)?);
        let mut staged = Staged { id, rows: told.rows, directory, elsewhere: None };
        match (told.file, area) {
            (ToldFile::Uploaded(upload), StagingArea::Uploads(area)) => area.take_over(&staged, upload)?,
            // Nothing but a file in the directory of the write.
            (ToldFile::Named { name, bytes }, StagingArea::Directory(_))
                if !name.contains(['/', '\\']) && !name.starts_with('.') =>
            {
                staged.elsewhere = Some(OtherFile { name, bytes });
            }
            (file, _) => return internal_err!("{file:?} is no file of this write"),
        }
        Ok(staged)
    };
    texts.iter().map(file).collect()
}
