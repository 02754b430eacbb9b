//! Writes blocks to files while their rows come: a block that is gathered first has left the caches of the processor,
//! and takes its bytes in memory, before it is encoded.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Result;
use futures::TryStreamExt;
use object_store::path::Path;

use super::clock::WriteClock;
use crate::block::{TaskId, rows_of_block, sliced_bytes};
use crate::error::ErrorContext;
use crate::physical::tasks::TaskStream;
use crate::sinks::{FileWriter, GrowingFile, PartitionColumns, Staged, StagingArea, Written};
use crate::store::WorkingSet;

/// What the writer of a column takes beside the values: its dictionary and the buffers of a page.
const COLUMN_WRITER_BYTES: usize = 32 << 10;

/// Bytes that are gathered before a file is begun, to see what they are like.
const SAMPLE_BYTES: usize = 4 << 20;
/// In so many steps the memory of a block is reserved.
const RESERVED_STEPS: usize = 64;

/// The files of the blocks of one partition after another. Blocks are cut by the rule of
/// [`crate::block::OutputBuffer`], but a block from which rows are written already is not cut before them.
pub(crate) struct BlockFiles {
    pub(crate) writer: FileWriter,
    pub(crate) area: Arc<StagingArea>,
    pub(crate) schema: SchemaRef,
    /// The columns whose values are directories, if there are any.
    pub(crate) by: Option<PartitionColumns>,
    pub(crate) target_bytes: usize,
    /// Rows of a file at most, if that is said.
    pub(crate) max_rows: Option<usize>,
    pub(crate) buffer_bytes: usize,
    pub(crate) reserved: WorkingSet,
    pub(crate) clock: WriteClock,
}

/// The files of one execution.
struct Open {
    files: BlockFiles,
    written: Vec<Staged>,
    /// Where the file of the block goes.
    directory: Path,
    /// A file that the disk still takes, and the bytes of its rows.
    unfinished: Option<(Written, usize)>,
    /// Blocks of this task so far.
    blocks: usize,
    /// Rows and bytes of the block that has begun.
    rows: usize,
    bytes: usize,
    /// Those of its rows that are not encoded.
    sample: Vec<RecordBatch>,
    file: Option<GrowingFile>,
}

impl BlockFiles {
    /// Writes all tasks. Returns their blocks with the number of rows of each.
    pub(crate) async fn write(self, mut tasks: TaskStream) -> Result<Vec<Staged>> {
        let clock = self.clock.clone();
        let mut open = Open {
            files: self,
            written: Vec::new(),
            directory: Path::default(),
            unfinished: None,
            blocks: 0,
            rows: 0,
            bytes: 0,
            sample: Vec::new(),
            file: None,
        };
        while let Some(mut task) = tasks.try_next().await? {
            while let Some(batch) = task.batches.try_next().await? {
                clock
                    .time(|| open.push_rows(&task.id, batch))
                    .while_doing(|| format!("writing blocks of task {}", task.id))?;
            }
            // A task without rows still gives a block, which says which columns there are; but for which value?
            if open.rows > 0 || open.blocks == 0 && open.files.by.is_none() {
                clock
                    .time(|| open.end_block(&task.id))
                    .while_doing(|| format!("writing blocks of task {}", task.id))?;
            }
            open.blocks = 0;
        }
        if let Some((last, _)) = open.unfinished {
            clock.time(|| last.finish())?;
        }
        Ok(open.written)
    }
}

impl Open {
    /// Rows of any values: where others begin, a file ends.
    fn push_rows(&mut self, task: &TaskId, batch: RecordBatch) -> Result<()> {
        let Some(by) = &self.files.by else {
            return self.push(task, batch);
        };
        for (directory, rows) in by.split(&batch)? {
            if self.directory != directory {
                if self.rows > 0 {
                    self.end_block(task)?;
                }
                self.directory = directory;
            }
            self.push(task, rows)?;
        }
        Ok(())
    }

    fn push(&mut self, task: &TaskId, mut batch: RecordBatch) -> Result<()> {
        let (target, max_rows) = (self.files.target_bytes, self.files.max_rows.unwrap_or(usize::MAX));
        while batch.num_rows() > 0 {
            let (rows, bytes) = (self.rows + batch.num_rows(), self.bytes + sliced_bytes(&batch));
            let wanted = rows_of_block(rows, bytes, target).min(max_rows);
            let taken = wanted.saturating_sub(self.rows).min(batch.num_rows());
            if taken > 0 {
                self.append(task, batch.slice(0, taken))?;
            }
            if bytes > target || rows > max_rows {
                self.end_block(task)?;
            }
            batch = batch.slice(taken, batch.num_rows() - taken);
        }
        Ok(())
    }

    fn append(&mut self, task: &TaskId, batch: RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        self.bytes += sliced_bytes(&batch);
        self.reserve()?;
        match &mut self.file {
            Some(file) => file.write(&batch),
            None => {
                self.sample.push(batch);
                match self.bytes >= SAMPLE_BYTES {
                    true => self.begin(task, self.rows.saturating_mul(self.files.target_bytes / self.bytes.max(1))),
                    false => Ok(()),
                }
            }
        }
    }

    /// Begins the file of a block that may have `file_rows` rows.
    fn begin(&mut self, task: &TaskId, file_rows: usize) -> Result<()> {
        let files = &self.files;
        let writer = files.writer.for_rows(&self.sample, file_rows.max(self.rows))?;
        let id = task.child(self.blocks);
        let mut file = writer.begin(&files.area, &id, &files.schema, files.buffer_bytes)?;
        self.sample.drain(..).try_for_each(|batch| file.write(&batch))?;
        self.file = Some(file);
        Ok(())
    }

    fn end_block(&mut self, task: &TaskId) -> Result<()> {
        let id = task.child(self.blocks);
        if self.file.is_none() {
            self.begin(task, self.rows)?;
        }
        if let Some(file) = self.file.take() {
            let file = file.close()?;
            self.written.push(Staged { id, rows: file.rows(), directory: self.directory.clone(), elsewhere: None });
            if let Some((before, _)) = self.unfinished.replace((file, self.bytes)) {
                before.finish()?;
            }
        }
        self.blocks += 1;
        (self.rows, self.bytes) = (0, 0);
        self.reserve()
    }

    /// Reserves what the block takes as it is encoded, and what is on its way to the disk.
    fn reserve(&mut self) -> Result<()> {
        let buffer_bytes = self.files.buffer_bytes;
        let on_its_way = |bytes: usize| bytes.min(FileWriter::file_bytes(buffer_bytes));
        let block = encoding_bytes(&self.files.schema, self.rows, self.bytes, buffer_bytes) + on_its_way(self.bytes);
        let last = self.unfinished.as_ref().map_or(0, |(_, bytes)| on_its_way(*bytes));
        let step = (self.files.target_bytes / RESERVED_STEPS).max(1);
        self.files.reserved.resize((block + last).next_multiple_of(step))
    }
}

/// About how many bytes a block takes that is encoded: its columns, and a row in a page and compressed.
pub(crate) fn encoding_bytes(schema: &Schema, rows: usize, bytes: usize, buffer_bytes: usize) -> usize {
    let columns = schema.flattened_fields().len() * COLUMN_WRITER_BYTES;
    bytes.min(buffer_bytes) + 2 * bytes / rows.max(1) + columns
}
