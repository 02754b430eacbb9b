//! Rows that queries have diverted, as tables.

use std::sync::Arc;

use datafusion::common::Result;

use super::DatasourceTable;
use super::blocks::StoredBlocks;
use crate::error::unknown_name;
use crate::store::BlockStore;

/// The rows for which functions failed, by the names that queries gave them.
#[derive(Debug, Clone)]
pub(crate) struct DivertedRows(Arc<BlockStore>);

impl DivertedRows {
    pub(crate) fn new(store: Arc<BlockStore>) -> Self {
        Self(store)
    }

    /// What the last query that diverted rows to `name` has diverted up to now: its rows as they came to the function, with
    /// the error (`_error`), the files that the task reads (`_file`), the number of the row among those of the task that came
    /// to the function (`_row`), and the task (`_task`).
    pub(crate) fn table(&self, name: &str) -> Result<Arc<DatasourceTable>> {
        let Some((schema, blocks)) = self.0.diverted().get(name) else {
            let names = self.0.diverted().names();
            return Err(unknown_name("name", name, "diverted", &names.iter().map(String::as_str).collect::<Vec<_>>()));
        };
        let blocks = StoredBlocks::new("ReadDiverted", schema, blocks);
        Ok(Arc::new(DatasourceTable::new(Arc::new(blocks), None)))
    }
}
