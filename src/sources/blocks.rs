//! Blocks of the store as a source: materialized datasets, stored tables, and rows given from code.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use futures::{StreamExt, TryStreamExt, stream};

use super::Datasource;
use crate::physical::block_batches;
use crate::store::BlockHandle;

/// Blocks in order. They live as long as this does.
#[derive(Debug)]
pub(crate) struct StoredBlocks {
    name: &'static str,
    schema: SchemaRef,
    blocks: Vec<BlockHandle>,
    numbered: bool,
}

impl StoredBlocks {
    /// Blocks of `schema`; `name` is what plans show.
    pub(crate) fn new(name: &'static str, schema: SchemaRef, blocks: Vec<BlockHandle>) -> Self {
        Self { name, schema, blocks, numbered: false }
    }

    /// Blocks of all columns of `schema` but the last, which is the number of the row, from 0 on.
    pub(crate) fn numbered(name: &'static str, schema: SchemaRef, blocks: Vec<BlockHandle>) -> Self {
        Self { numbered: true, ..Self::new(name, schema, blocks) }
    }

    /// The blocks.
    pub(crate) fn blocks(&self) -> &[BlockHandle] {
        &self.blocks
    }
}

impl Datasource for StoredBlocks {
    fn name(&self) -> &str {
        self.name
    }

    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn estimated_bytes(&self) -> Option<usize> {
        Some(self.blocks.iter().map(|b| b.metadata().size_bytes).sum())
    }

    fn num_rows(&self) -> Option<usize> {
        Some(self.blocks.iter().map(|b| b.metadata().num_rows).sum())
    }

    /// One task per block, whatever the parallelism: a block is a task.
    fn read_tasks(&self, _parallelism: usize) -> Result<Vec<Arc<dyn PartitionStream>>> {
        let mut first_row = 0;
        let mut task = |block: Option<&BlockHandle>| {
            let first = self.numbered.then_some(first_row);
            first_row += block.map_or(0, |block| block.metadata().num_rows as u64);
            Arc::new(BlockTask { schema: self.schema(), block: block.cloned(), first }) as Arc<dyn PartitionStream>
        };
        match self.blocks.is_empty() {
            true => Ok(vec![task(None)]),
            false => Ok(self.blocks.iter().map(|block| task(Some(block))).collect()),
        }
    }
}

#[derive(Debug)]
struct BlockTask {
    schema: SchemaRef,
    block: Option<BlockHandle>,
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
        let blocks = stream::iter(block).map(block_batches).flatten();
        // Operators expect batches of at most this many rows.
        let batches = blocks.map_ok(move |batch| {
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
