//! [`RowFiles`]: how the rows of a plan become files, none of which can be read yet.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;

use super::block_files::{BlockFiles, encoding_bytes};
use super::clock::{InputTime, WriteClock};
use super::each_block::{Tries, of_partition};
use crate::block::{Block, BlockMetadata, TaskId};
use crate::physical::gather::gather;
use crate::physical::memory::block_bytes;
use crate::physical::tasks::{RowBalance, Task, TaskStream, measured_task_stream};
use crate::runtime::Drivers;
use crate::sinks::{FileWriter, PartitionColumns, Staged, StagingArea};
use crate::store::{BlockStore, Owner, QueryPool};

/// A row group is not larger than this. It is written when all of it is encoded: several in a file keep the disk busy
/// meanwhile, and the dictionaries of their columns in the caches of the processor.
const MAX_ROW_GROUP_BYTES: usize = 32 << 20;

/// How rows become files.
#[derive(Debug, Clone)]
pub(crate) struct RowFiles {
    pub(super) writer: FileWriter,
    /// The columns whose values are directories, if there are any. Rows come sorted by them.
    pub(super) by: Option<PartitionColumns>,
    /// Bytes that the rows of a file have in memory at most, if that is said.
    pub(super) max_bytes: Option<usize>,
    /// Rows of a file of a write into directories at most, if that is said. Other writes get blocks of so many rows.
    pub(super) max_rows: Option<usize>,
}

impl RowFiles {
    /// The bytes that a block aims at. One that comes within half of them more is not cut.
    pub(crate) fn block_bytes(&self, context: &TaskContext) -> Result<usize> {
        let bytes = block_bytes(context)?;
        Ok(self.max_bytes.map_or(bytes, |most| bytes.min(most / 3 * 2).max(1)))
    }

    /// What it writes, for plans and metrics.
    pub(super) fn name(&self) -> String {
        format!("Write{}", self.writer.name())
    }

    /// All that decides the files of some rows but for the space that these take; none where files go into directories.
    pub(crate) fn said(&self) -> Option<String> {
        self.by.is_none().then(|| format!("{:?} {:?} {:?}", self.writer, self.max_bytes, self.max_rows))
    }
}

/// One execution of that.
#[derive(Debug, Clone)]
pub(super) struct FileJob {
    pub(super) files: RowFiles,
    pub(super) area: Arc<StagingArea>,
    /// The number of what the tasks are within, where others have the rest of it.
    pub(super) within: Option<usize>,
    pub(super) target_bytes: usize,
    pub(super) context: Arc<TaskContext>,
    pub(super) metrics: ExecutionPlanMetricsSet,
    /// Rows that come, and rows that are in files.
    pub(super) balance: Arc<RowBalance>,
}

impl FileJob {
    fn owner(&self) -> Arc<Owner> {
        let owner = Owner::default();
        owner.describe(QueryPool::query_of(&self.context), || self.files.name());
        Arc::new(owner)
    }

    /// Where a task stands in the order of all rows.
    fn place(within: Option<usize>, id: TaskId) -> TaskId {
        match within {
            Some(number) => id.within(number),
            None => id,
        }
    }

    /// Writes all rows to one file.
    pub(super) async fn one_file(&self, input: &Arc<dyn ExecutionPlan>) -> Result<Vec<Staged>> {
        let batches = self.balance.taking(gather(input, Arc::clone(&self.context), &Arc::default())?);
        self.file_of(&input.schema(), batches.boxed()).await
    }

    /// Writes one file of all of `batches`.
    pub(super) async fn file_of(
        &self,
        schema: &SchemaRef,
        batches: BoxStream<'static, Result<RecordBatch>>,
    ) -> Result<Vec<Staged>> {
        let id = TaskId::root(0);
        let buffer_bytes = MAX_ROW_GROUP_BYTES.min(self.target_bytes);
        let file_bytes =
            FileWriter::file_bytes(buffer_bytes).max(FileWriter::block_file_bytes(&self.area, buffer_bytes));
        let bytes = buffer_bytes + file_bytes;
        let _reserved = BlockStore::of_task(&self.context)?.working_set(&self.owner(), bytes)?;
        let (clock, input) = (WriteClock::new(&self.metrics), InputTime::default());
        let directory = Path::default();
        let batches = input.of(batches);
        let write = self.files.writer.write(&self.area, &id, &directory, schema, buffer_bytes, batches);
        let rows = clock.time_future(&input, write).await?;
        Ok(vec![Staged { id, rows, directory, elsewhere: None }])
    }

    /// Writes a file for each block of each partition.
    pub(super) async fn all(&self, input: &Arc<dyn ExecutionPlan>) -> Result<Vec<Staged>> {
        let partitions = 0..input.output_partitioning().partition_count();
        let drivers = partitions.map(|partition| self.partition(input, partition)).collect::<Result<Vec<_>>>()?;
        Ok(Drivers::start(drivers).finish().await?.into_iter().flatten().collect())
    }

    /// The same of one of them.
    pub(super) fn partition(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
    ) -> Result<BoxFuture<'static, Result<Vec<Staged>>>> {
        match self.files.writer.takes_rows_as_they_come(&self.area) {
            true => {
                let tasks = measured_task_stream(input, partition, Arc::clone(&self.context))?;
                self.as_they_come(&input.schema(), tasks)
            }
            false => self.blocks(input, partition),
        }
    }

    fn as_they_come(&self, schema: &SchemaRef, tasks: TaskStream) -> Result<BoxFuture<'static, Result<Vec<Staged>>>> {
        let by = self.files.by.clone();
        let files = BlockFiles {
            writer: self.files.writer.clone(),
            area: Arc::clone(&self.area),
            schema: Arc::clone(by.as_ref().map_or(schema, PartitionColumns::file_schema)),
            by,
            target_bytes: self.target_bytes,
            max_rows: self.files.max_rows,
            buffer_bytes: MAX_ROW_GROUP_BYTES.min(self.target_bytes),
            reserved: BlockStore::of_task(&self.context)?.working_set(&self.owner(), 0)?,
            clock: WriteClock::new(&self.metrics),
        };
        let (balance, within) = (Arc::clone(&self.balance), self.within);
        let taken = tasks.map_ok(move |task| {
            let (id, batches) = (Self::place(within, task.id), balance.taking(task.batches));
            Task { id, batches, input: task.input }
        });
        Ok(files.write(taken.boxed()).boxed())
    }

    fn blocks(
        &self,
        input: &Arc<dyn ExecutionPlan>,
        partition: usize,
    ) -> Result<BoxFuture<'static, Result<Vec<Staged>>>> {
        let buffer_bytes = MAX_ROW_GROUP_BYTES.min(self.target_bytes);
        let file_bytes = FileWriter::block_file_bytes(&self.area, buffer_bytes);
        let beside = move |block: &Block| {
            let BlockMetadata { num_rows, size_bytes } = block.metadata();
            encoding_bytes(block.schema(), num_rows, size_bytes, buffer_bytes) + file_bytes
        };
        let (files, area, within) = (self.files.clone(), Arc::clone(&self.area), self.within);
        let (clock, tries) = (WriteClock::new(&self.metrics), Tries::of(&self.context));
        let of_blocks = tries.clone();
        let write = move |id: TaskId, block: Block| {
            let (files, area) = (files.clone(), Arc::clone(&area));
            let (clock, tries, id) = (clock.clone(), of_blocks.clone(), Self::place(within, id));
            async move {
                let mut written = Vec::new();
                for (id, file) in files_of(id, block, files.by.as_ref(), files.max_rows)? {
                    let writer = files.writer.for_rows(&file.batches, file.rows)?;
                    let once = || async {
                        let batches = stream::iter(file.batches.clone()).map(Ok).boxed();
                        let write = writer.write(&area, &id, &file.directory, &file.schema, buffer_bytes, batches);
                        clock.time_future(&InputTime::default(), write).await
                    };
                    let rows = tries.run(&id, format!("block {id}"), once).await?;
                    written.push(Staged { id, rows, directory: file.directory, elsewhere: None });
                }
                Ok(written)
            }
        };
        let written = of_partition(
            (input, partition),
            &self.context,
            self.target_bytes,
            &self.owner(),
            &self.balance,
            beside,
            write,
        )?;
        let metrics = self.metrics.clone();
        let noted = async move {
            let written = written.await?;
            tries.note(&metrics);
            Ok(written.into_iter().flatten().collect())
        };
        Ok(noted.boxed())
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
