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
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use parking_lot::Mutex;

use super::block_files::{BlockFiles, encoding_bytes};
use super::clock::{InputTime, WriteClock};
use super::each_block::{Tries, each_block};
use crate::block::{Block, BlockMetadata, TaskId};
use crate::physical::gather::gather;
use crate::physical::memory::block_bytes;
use crate::physical::operator::InputOrder;
use crate::physical::operator::{Operator, Retention};
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::ungathered;
use crate::physical::tasks::{Task, measured_task_stream, properties, stream_of};
use crate::runtime::Drivers;
use crate::sinks::{Begun, FileWriter, PartitionColumns, Staged, Staging, Target, WrittenFile};
use crate::store::{BlockStore, Owner, QueryPool};

/// A row group is not larger than this. It is written when all of it is encoded: several in a file keep the disk busy
/// meanwhile, and the dictionaries of their columns in the caches of the processor.
const MAX_ROW_GROUP_BYTES: usize = 32 << 20;

/// Writes its input and returns the number of rows.
#[derive(Debug)]
pub(crate) struct WriteExec {
    input: Arc<dyn ExecutionPlan>,
    input_order: InputOrder,
    writer: FileWriter,
    target: Target,
    /// The columns whose values are directories, if there are any. Rows come sorted by them.
    by: Option<PartitionColumns>,
    /// Bytes that the rows of a file have in memory at most, if that is said.
    max_bytes: Option<usize>,
    /// Rows of a file of a write into directories at most, if that is said. Other writes get blocks of so many rows.
    max_rows: Option<usize>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The files that were committed.
    files: Arc<Mutex<Vec<WrittenFile>>>,
}

impl WriteExec {
    /// Writes `input` to `target`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, writer: FileWriter, target: Target) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new("count", DataType::UInt64, false)]));
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Final);
        let input_order = InputOrder::of(input.as_ref());
        let (metrics, files) = (ExecutionPlanMetricsSet::new(), Arc::default());
        Self {
            input,
            input_order,
            writer,
            target,
            by: None,
            max_bytes: None,
            max_rows: None,
            properties,
            metrics,
            files,
        }
    }

    /// The files that were committed.
    pub(crate) fn files(&self) -> Vec<WrittenFile> {
        self.files.lock().clone()
    }

    /// The same write with files of at most so many bytes of rows, as far as rows can be told apart.
    pub(crate) fn with_max_bytes(self, max_bytes: Option<usize>) -> Self {
        Self { max_bytes, ..self }
    }

    /// The same write into the directories that the values of these columns are. Its input is sorted by them in each
    /// task. Files have at most `max_rows` rows, if that is said.
    pub(crate) fn partitioned_by(self, by: PartitionColumns, max_rows: Option<usize>) -> Self {
        Self { by: Some(by), max_rows, ..self }
    }
}

impl Operator for WriteExec {
    fn name(&self) -> &'static str {
        "WriteExec"
    }

    fn describe(&self) -> String {
        let what = if self.target.single_file { "file" } else { "one file per block" };
        let by = self.by.as_ref().map_or_else(String::new, |by| format!(", by=[{by}]"));
        let most = self.max_bytes.map_or_else(String::new, |most| format!(", max_bytes_per_file={most}"));
        let rows = self.max_rows.map_or_else(String::new, |most| format!(", max_rows_per_file={most}"));
        let (mode, url) = (&self.target.mode, &self.target.url);
        format!("Write{}, {what}{by}{rows}{most}, mode={mode}, to={url}", self.writer.name())
    }

    fn describe_in_tree(&self) -> String {
        format!("Write{}", self.writer.name())
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
        let plan = Self::new(inputs.swap_remove(0), self.writer.clone(), self.target.clone());
        let (input_order, by) = (self.input_order.clone(), self.by.clone());
        let (max_bytes, max_rows) = (self.max_bytes, self.max_rows);
        Ok(Self { input_order, by, max_bytes, max_rows, ..plan }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("WriteExec has one partition, not {partition}");
        }
        let balance = RowBalance::new(format!("Write{}", self.writer.name()), &context);
        let job = Job {
            input: Arc::clone(&self.input),
            writer: self.writer.clone(),
            target: self.target.clone(),
            by: self.by.clone(),
            max_bytes: self.max_bytes,
            max_rows: self.max_rows,
            context,
            metrics: self.metrics.clone(),
            files: Arc::clone(&self.files),
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
    writer: FileWriter,
    target: Target,
    by: Option<PartitionColumns>,
    max_bytes: Option<usize>,
    max_rows: Option<usize>,
    context: Arc<TaskContext>,
    metrics: ExecutionPlanMetricsSet,
    files: Arc<Mutex<Vec<WrittenFile>>>,
    /// Rows that come, and rows that are in files.
    balance: Arc<RowBalance>,
}

impl Job {
    async fn run(self) -> Result<usize> {
        let store = self.context.runtime_env().object_store(self.target.url.object_store())?;
        let staging: Arc<Staging> = match Staging::begin(store, self.target.clone()).await? {
            Begun::Write(staging) => staging.into(),
            Begun::LeaveIt => return Ok(0),
            Begun::Done(rows) => return Ok(rows),
        };
        // Should this process die, the next session finds what it leaves.
        let directories = Arc::clone(BlockStore::of_task(&self.context)?.directories());
        let _noted = staging.local_directory().map(|staged| directories.note(staged)).transpose()?;
        let written = match self.target.single_file {
            true => self.write_one(&staging).await,
            false if self.writer.takes_rows_as_they_come(&staging) => self.write_as_they_come(&staging).await,
            false => self.write_blocks(&staging).await,
        };
        // What has no blocks still has columns, and is read again. (In directories, those of which value?)
        let written = match written {
            Ok(none) if none.is_empty() && self.by.is_none() => {
                self.write_file(&staging, stream::empty().boxed()).await
            }
            written => written,
        };
        let written = match written {
            Ok(written) => written,
            Err(e) => {
                // The first error is the one to tell; what stays staged is hidden.
                let _aborted = staging.abort().await;
                return Err(e);
            }
        };
        let rows: usize = written.iter().map(|file| file.rows).sum();
        self.balance.give(rows);
        if let Err(e) = self.balance.check() {
            let _aborted = staging.abort().await;
            return Err(e);
        }
        MetricBuilder::new(&self.metrics).output_rows(0).add(rows);
        MetricBuilder::new(&self.metrics).global_counter("files").add(written.len());
        let files = staging.commit(written).await?;
        self.files.lock().extend(files);
        Ok(rows)
    }

    /// The bytes that a block aims at. One that comes within half of them more is not cut.
    fn block_bytes(&self) -> Result<usize> {
        let bytes = block_bytes(&self.context)?;
        Ok(self.max_bytes.map_or(bytes, |most| bytes.min(most / 3 * 2).max(1)))
    }

    fn owner(&self) -> Arc<Owner> {
        let owner = Owner::default();
        owner.describe(QueryPool::query_of(&self.context), || format!("Write{}", self.writer.name()));
        Arc::new(owner)
    }

    async fn write_one(&self, staging: &Arc<Staging>) -> Result<Vec<Staged>> {
        let batches = self.balance.taking(gather(&self.input, Arc::clone(&self.context), &Arc::default())?);
        self.write_file(staging, batches.boxed()).await
    }

    /// Writes one file of all of `batches`.
    async fn write_file(
        &self,
        staging: &Arc<Staging>,
        batches: BoxStream<'static, Result<RecordBatch>>,
    ) -> Result<Vec<Staged>> {
        let id = TaskId::root(0);
        let buffer_bytes = MAX_ROW_GROUP_BYTES.min(self.block_bytes()?);
        let file_bytes = FileWriter::file_bytes(buffer_bytes).max(FileWriter::block_file_bytes(staging, buffer_bytes));
        let bytes = buffer_bytes + file_bytes;
        let _reserved = BlockStore::of_task(&self.context)?.working_set(&self.owner(), bytes)?;
        let (clock, input) = (WriteClock::new(&self.metrics), InputTime::default());
        let schema = self.input.schema();
        let directory = Path::default();
        let write = self.writer.write(staging, &id, &directory, &schema, buffer_bytes, input.of(batches));
        let rows = clock.time_future(&input, write).await?;
        Ok(vec![Staged { id, rows, directory }])
    }

    async fn write_as_they_come(&self, staging: &Arc<Staging>) -> Result<Vec<Staged>> {
        let target_bytes = self.block_bytes()?;
        let (store, owner) = (BlockStore::of_task(&self.context)?, self.owner());
        let clock = WriteClock::new(&self.metrics);
        let mut drivers = Vec::new();
        let input = ungathered(&self.input);
        for partition in 0..input.output_partitioning().partition_count() {
            let files = BlockFiles {
                writer: self.writer.clone(),
                staging: Arc::clone(staging),
                schema: self.by.as_ref().map_or_else(|| input.schema(), |by| Arc::clone(by.file_schema())),
                by: self.by.clone(),
                target_bytes,
                max_rows: self.max_rows,
                buffer_bytes: MAX_ROW_GROUP_BYTES.min(target_bytes),
                reserved: store.working_set(&owner, 0)?,
                clock: clock.clone(),
            };
            let balance = Arc::clone(&self.balance);
            let tasks = measured_task_stream(input, partition, Arc::clone(&self.context))?;
            let taken = tasks.map_ok(move |task| Task { batches: balance.taking(task.batches), ..task });
            drivers.push(files.write(taken.boxed()));
        }
        Ok(Drivers::start(drivers).finish().await?.into_iter().flatten().collect())
    }

    async fn write_blocks(&self, staging: &Arc<Staging>) -> Result<Vec<Staged>> {
        let target_bytes = self.block_bytes()?;
        let buffer_bytes = MAX_ROW_GROUP_BYTES.min(target_bytes);
        let file_bytes = FileWriter::block_file_bytes(staging, buffer_bytes);
        let beside = move |block: &Block| {
            let BlockMetadata { num_rows, size_bytes } = block.metadata();
            encoding_bytes(block.schema(), num_rows, size_bytes, buffer_bytes) + file_bytes
        };
        let (writer, staging, by) = (self.writer.clone(), Arc::clone(staging), self.by.clone());
        let (clock, tries, max_rows) = (WriteClock::new(&self.metrics), Tries::of(&self.context), self.max_rows);
        let of_blocks = tries.clone();
        let write = move |id: TaskId, block: Block| {
            let (writer, staging, by) = (writer.clone(), Arc::clone(&staging), by.clone());
            let (clock, tries) = (clock.clone(), of_blocks.clone());
            async move {
                let mut written = Vec::new();
                for (id, file) in files_of(id, block, by.as_ref(), max_rows)? {
                    let writer = writer.for_rows(&file.batches, file.rows)?;
                    let once = || async {
                        let batches = stream::iter(file.batches.clone()).map(Ok).boxed();
                        let write = writer.write(&staging, &id, &file.directory, &file.schema, buffer_bytes, batches);
                        clock.time_future(&InputTime::default(), write).await
                    };
                    let rows = tries.run(&id, format!("block {id}"), once).await?;
                    written.push(Staged { id, rows, directory: file.directory });
                }
                Ok(written)
            }
        };
        let written =
            each_block(&self.input, &self.context, target_bytes, &self.owner(), &self.balance, beside, write).await?;
        tries.note(&self.metrics);
        Ok(written.into_iter().flatten().collect())
    }
}

/// The rows of one file.
struct FileRows {
    directory: Path,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    rows: usize,
}

/// The files of a block: one, or one for each of the values that its rows are told apart by, and more where these have
/// more rows than `max_rows`.
fn files_of(
    id: TaskId,
    block: Block,
    by: Option<&PartitionColumns>,
    max_rows: Option<usize>,
) -> Result<Vec<(TaskId, FileRows)>> {
    let Some(by) = by else {
        let (schema, rows) = (Arc::clone(block.schema()), block.metadata().num_rows);
        return Ok(vec![(id, FileRows { directory: Path::default(), schema, batches: block.into_batches(), rows })]);
    };
    let mut files: Vec<(TaskId, FileRows)> = Vec::new();
    for batch in block.into_batches() {
        for (directory, mut part) in by.split(&batch)? {
            while part.num_rows() > 0 {
                let last = files.last_mut().map(|(_, last)| last).filter(|last| last.directory == directory);
                let room = |rows: usize| max_rows.map_or(usize::MAX, |most| most - rows);
                let last = last.filter(|last| room(last.rows) > 0);
                let rows = part.num_rows().min(room(last.as_ref().map_or(0, |last| last.rows)));
                let batch = part.slice(0, rows);
                part = part.slice(rows, part.num_rows() - rows);
                match last {
                    Some(last) => {
                        last.rows += rows;
                        last.batches.push(batch);
                    }
                    None => {
                        let (directory, schema) = (directory.clone(), Arc::clone(by.file_schema()));
                        files.push((id.child(files.len()), FileRows { directory, schema, batches: vec![batch], rows }));
                    }
                }
            }
        }
    }
    Ok(files)
}
