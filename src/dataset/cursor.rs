//! Queries that are read some rows at a time: `DECLARE`, `FETCH` and `CLOSE` of SQL.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, plan_err};
use futures::TryStreamExt;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::iterate::Apart;
use super::{Batches, Dataset, IterOptions};
use crate::block::Block;
use crate::error::unknown_name;
use crate::sources::StoredBlocks;
use crate::store::{BlockHandle, NextUse, Owner};

/// The open cursors of a session, by name.
#[derive(Default)]
pub(crate) struct Cursors(Mutex<BTreeMap<String, Arc<AsyncMutex<Cursor>>>>);

/// A query, and where it is.
struct Cursor {
    dataset: Dataset,
    /// The rows that come, once somebody has asked for some.
    batches: Option<Batches>,
    /// Rows that came and were not fetched.
    rest: Option<RecordBatch>,
}

impl Cursors {
    /// Opens a cursor. Nothing runs before its first rows are fetched.
    pub(super) fn declare(&self, name: &str, dataset: Dataset) -> Result<()> {
        let mut cursors = self.0.lock();
        if cursors.contains_key(name) {
            return plan_err!("there is a cursor '{name}' already; CLOSE {name} first");
        }
        cursors.insert(name.to_owned(), Arc::new(AsyncMutex::new(Cursor { dataset, batches: None, rest: None })));
        Ok(())
    }

    /// The next rows of a cursor, at most so many, in the store; none at its end.
    pub(super) async fn fetch(&self, name: &str, rows: usize) -> Result<StoredBlocks> {
        let cursor = self.0.lock().get(name).map(Arc::clone);
        match cursor {
            Some(cursor) => cursor.lock().await.fetch(rows).await,
            None => Err(self.unknown(name)),
        }
    }

    /// Closes a cursor, and stops what runs for it.
    pub(crate) fn close(&self, name: &str) -> Result<()> {
        let closed = self.0.lock().remove(name);
        closed.map(|_| ()).ok_or_else(|| self.unknown(name))
    }

    /// Closes all.
    pub(crate) fn close_all(&self) {
        self.0.lock().clear();
    }

    fn unknown(&self, name: &str) -> datafusion::common::DataFusionError {
        let cursors = self.0.lock();
        unknown_name("cursor", name, "", &cursors.keys().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Cursor {
    async fn fetch(&mut self, rows: usize) -> Result<StoredBlocks> {
        let store = Arc::clone(self.dataset.context.store());
        let owner = Arc::new(Owner::default());
        let mut blocks: Vec<BlockHandle> = Vec::new();
        let mut left = rows;
        while left > 0 {
            let Some(batch) = self.next().await? else { break };
            let taken = left.min(batch.num_rows());
            left -= taken;
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            let batch = batch.slice(0, taken);
            blocks.push(store.put(Block::new(batch.schema(), vec![batch]), NextUse::Kept, &owner)?);
        }
        let schema =
            self.batches.as_ref().map_or_else(|| self.dataset.schema(), |batches| Arc::clone(batches.schema()));
        Ok(StoredBlocks::new("Fetch", schema, blocks))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(rest));
        }
        let batches = match &mut self.batches {
            Some(batches) => batches,
            None => {
                let options = IterOptions { batch_size: None, ..IterOptions::default() };
                let batches = self.dataset.batches(options, Apart::Batches).await?;
                self.batches.insert(batches.observed(&self.dataset.state))
            }
        };
        batches.try_next().await
    }
}

impl fmt::Debug for Cursors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock().keys()).finish()
    }
}
