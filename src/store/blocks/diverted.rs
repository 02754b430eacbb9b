//! Rows for which functions failed, by the names that queries gave them.

use std::collections::BTreeMap;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, plan_err};
use parking_lot::Mutex;

use crate::block::TaskId;
use crate::store::BlockHandle;

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
    /// A query begins to divert rows to a name: what earlier ones have diverted goes. Fails when the query diverts rows
    /// with other columns to the name.
    pub(crate) fn begin(&self, name: &str, query: u64, schema: &SchemaRef) -> Result<()> {
        let mut tables = self.0.lock();
        match tables.get(name) {
            Some(table) if table.query > query => Ok(()),
            Some(table) if table.query == query && table.schema == *schema => Ok(()),
            Some(table) if table.query == query => {
                plan_err!("two operators of a query divert rows with different columns to '{name}'")
            }
            _ => {
                let table = Table { query, schema: SchemaRef::clone(schema), blocks: BTreeMap::new() };
                tables.insert(name.to_owned(), table);
                Ok(())
            }
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
