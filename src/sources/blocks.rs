//! Blocks of the store as a source: materialized datasets, stored tables, and rows given from code.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::{StreamExt, TryStreamExt, stream};

use super::{Datasource, ReadPlan, ReadRequest, ReadTask};
use crate::block::BlockMetadata;
use crate::physical::block_rows;
use crate::store::BlockHandle;

/// Blocks in order. They live as long as this does.
#[derive(Debug)]
pub(crate) struct StoredBlocks {
    name: &'static str,
    schema: SchemaRef,
    blocks: Vec<BlockPart>,
    numbered: bool,
}

/// Rows of a block.
#[derive(Debug, Clone)]
struct BlockPart {
    handle: BlockHandle,
    rows: Range<usize>,
}

impl BlockPart {
    /// Bytes of its rows, where all rows of the block are as large.
    fn size_bytes(&self) -> usize {
        let whole = self.handle.metadata();
        (whole.size_bytes as u128 * self.rows.len() as u128 / whole.num_rows.max(1) as u128) as usize
    }
}

impl StoredBlocks {
    /// Blocks of `schema`; `name` is what plans show.
    pub(crate) fn new(name: &'static str, schema: SchemaRef, blocks: Vec<BlockHandle>) -> Self {
        let whole = |handle: BlockHandle| BlockPart { rows: 0..handle.metadata().num_rows, handle };
        Self { name, schema, blocks: blocks.into_iter().map(whole).collect(), numbered: false }
    }

    /// Blocks of all columns of `schema` but the last, which is the number of the row, from 0 on.
    pub(crate) fn numbered(name: &'static str, schema: SchemaRef, blocks: Vec<BlockHandle>) -> Self {
        Self { numbered: true, ..Self::new(name, schema, blocks) }
    }

    /// Number of blocks.
    pub(crate) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Rows of all blocks.
    pub(crate) fn total_rows(&self) -> usize {
        self.blocks.iter().map(|part| part.rows.len()).sum()
    }

    /// Bytes of all blocks.
    pub(crate) fn size_bytes(&self) -> usize {
        self.blocks.iter().map(BlockPart::size_bytes).sum()
    }

    /// Rows and bytes of each block.
    pub(crate) fn metadata(&self) -> Vec<BlockMetadata> {
        let of = |part: &BlockPart| BlockMetadata { num_rows: part.rows.len(), size_bytes: part.size_bytes() };
        self.blocks.iter().map(of).collect()
    }

    /// The rows of these numbers, in the blocks that they are in. Nothing is copied.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        let mut first = 0;
        let mut blocks = Vec::new();
        for part in &self.blocks {
            let (from, to) = (rows.start.max(first), rows.end.min(first + part.rows.len()));
            if from < to {
                let begin = part.rows.start;
                blocks.push(BlockPart { handle: part.handle.clone(), rows: begin + from - first..begin + to - first });
            }
            first += part.rows.len();
        }
        Self { name: self.name, schema: Arc::clone(&self.schema), blocks, numbered: self.numbered }
    }
}

#[async_trait]
impl Datasource for StoredBlocks {
    fn name(&self) -> &str {
        self.name
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn num_rows(&self) -> Option<usize> {
        Some(self.total_rows())
    }

    /// One task per block, whatever the parallelism: a block is a task.
    async fn plan(&self, _request: ReadRequest<'_>) -> Result<ReadPlan> {
        let mut first_row = 0;
        let task = |block: &BlockPart| {
            let first = self.numbered.then_some(first_row);
            let (rows, bytes) = (block.rows.len(), block.size_bytes());
            first_row += rows as u64;
            let task = BlockTask { schema: self.schema(), block: block.clone(), first };
            ReadTask { rows: Some(rows), bytes: Some(bytes), ..Arc::new(task).into() }
        };
        Ok(self.blocks.iter().map(task).collect::<Vec<_>>().into())
    }
}

#[derive(Debug)]
struct BlockTask {
    schema: SchemaRef,
    block: BlockPart,
    /// Number of the first row, if rows are numbered.
    first: Option<u64>,
}

impl PartitionStream for BlockTask {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let block = self.block.clone();
        let batch_size = context.session_config().batch_size();
        let rows = block_rows(block.handle, block.rows);
        // Operators expect batches of at most this many rows.
        let batches = rows.map_ok(move |batch| {
            let starts = (0..batch.num_rows()).step_by(batch_size);
            stream::iter(starts.map(move |at| Ok(batch.slice(at, batch_size.min(batch.num_rows() - at)))))
        });
        let batches = batches.try_flatten();
        let (schema, mut next) = (Arc::clone(&self.schema), self.first);
        let batches = batches.map(move |batch| match &mut next {
            Some(next) => numbered(&schema, &batch?, next),
            None => batch,
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}

/// A batch with the numbers of its rows as the last column.
fn numbered(schema: &SchemaRef, batch: &RecordBatch, next: &mut u64) -> Result<RecordBatch> {
    let first = *next;
    *next += batch.num_rows() as u64;
    let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(first..*next));
    let columns = batch.columns().iter().cloned().chain([numbers]).collect();
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}
