//! Rows that wait for others, in memory as long as they are few, and in the store, which may spill them, when they are
//! many.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::block::{Block, sliced_bytes};
use crate::physical::tasks::block_batches;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// Rows are stored in blocks of about this many bytes.
const BLOCK_BYTES: usize = 1 << 20;

/// Rows that are read once, in the order in which they came.
pub(super) struct StoredRows {
    schema: SchemaRef,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
    stored: Vec<BlockHandle>,
    waiting: Vec<RecordBatch>,
    waiting_bytes: usize,
}

impl StoredRows {
    /// None yet, with the columns of `schema`.
    pub(super) fn new(schema: &SchemaRef, store: &Arc<BlockStore>, owner: &Arc<Owner>) -> Self {
        let (store, owner) = (Arc::clone(store), Arc::clone(owner));
        Self { schema: Arc::clone(schema), store, owner, stored: vec![], waiting: vec![], waiting_bytes: 0 }
    }

    /// Bytes of those that are not in the store.
    pub(super) fn bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Adds rows.
    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        self.waiting_bytes += sliced_bytes(&batch);
        self.waiting.push(batch);
        if self.waiting_bytes >= BLOCK_BYTES { self.store() } else { Ok(()) }
    }

    fn store(&mut self) -> Result<()> {
        let block = Block::new(Arc::clone(&self.schema), std::mem::take(&mut self.waiting));
        self.waiting_bytes = 0;
        self.stored.push(self.store.put(block, NextUse::AfterInput, &self.owner)?);
        Ok(())
    }

    /// All of them.
    pub(super) fn read(self) -> BoxStream<'static, Result<RecordBatch>> {
        let stored = stream::iter(self.stored).map(block_batches).flatten();
        stored.chain(stream::iter(self.waiting).map(Ok)).boxed()
    }
}
