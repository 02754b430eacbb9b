//! Rows for which functions failed, by the names that queries gave them.

use std::collections::BTreeMap;

use datafusion::arrow::datatypes::SchemaRef;
use parking_lot::Mutex;

use super::BlockHandle;
use crate::block::TaskId;

/// What the last query that diverted rows to a name has diverted.
#[derive(Debug, Default)]
pub(crate) struct Diverted(Mutex<BTreeMap<String, Table>>);

#[derive(Debug)]
struct Table {
    query: u64,
    schema: SchemaRef,
    /// By task, and by their number within it.
    blocks: BTreeMap<(TaskId, usize), BlockHandle>,
}

impl Diverted {
    /// A query begins to divert rows to a name: what others have diverted goes.
    pub(crate) fn begin(&self, name: &str, query: u64, schema: &SchemaRef) {
        let mut tables = self.0.lock();
        if !tables.get(name).is_some_and(|table| table.query == query && table.schema == *schema) {
            let table = Table { query, schema: SchemaRef::clone(schema), blocks: BTreeMap::new() };
            tables.insert(name.to_owned(), table);
        }
    }

    /// Adds rows of a task. A query that is not the last one to have begun is not heard any more.
    pub(crate) fn add(&self, name: &str, query: u64, task: &TaskId, rows: BlockHandle) {
        if let Some(table) = self.0.lock().get_mut(name).filter(|table| table.query == query) {
            let place = table.blocks.len();
            table.blocks.insert((task.clone(), place), rows);
        }
    }

    /// What was diverted to a name, in the order of the tasks.
    pub(crate) fn get(&self, name: &str) -> Option<(SchemaRef, Vec<BlockHandle>)> {
        let tables = self.0.lock();
        let table = tables.get(name)?;
        Some((SchemaRef::clone(&table.schema), table.blocks.values().cloned().collect()))
    }

    /// All names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().keys().cloned().collect()
    }
}
