//! Rows that queries have diverted, as tables.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::LogicalPlan;

use super::DatasourceTable;
use super::blocks::StoredBlocks;
use crate::arguments;
use crate::call::{Planning, TableFunction, extension_of};
use crate::error::unknown_name;
use crate::store::BlockStore;

arguments! {
    /// Which rows.
    #[derive(Debug)]
    pub(crate) struct DivertedArguments {
        /// The name that the query gave them, with `divert_to`.
        name: String,
    }
}

/// `diverted(name)`.
#[derive(Debug)]
pub(crate) struct ReadDiverted;

impl TableFunction for ReadDiverted {
    type Arguments = DivertedArguments;

    fn name(&self) -> &'static str {
        "diverted"
    }

    fn about(&self) -> &'static str {
        "The rows for which a function failed, with the error, that the last query with this name has diverted."
    }

    fn plan(&self, arguments: DivertedArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let store = extension_of::<BlockStore>(planning.session)?;
        planning.scan(DivertedRows::new(store).table(&arguments.name)?)
    }
}

/// The rows for which functions failed, by the names that queries gave them.
#[derive(Debug, Clone)]
pub(crate) struct DivertedRows(Arc<BlockStore>);

impl DivertedRows {
    pub(crate) fn new(store: Arc<BlockStore>) -> Self {
        Self(store)
    }

    /// What the last query that diverted rows to `name` has diverted up to now: its rows as they came to the function,
    /// with the error (`_error`), the files that the task reads (`_file`), the number of the row among those of the
    /// task that came to the function (`_row`), and the task (`_task`).
    pub(crate) fn table(&self, name: &str) -> Result<Arc<DatasourceTable>> {
        let Some((schema, blocks)) = self.0.diverted().get(name) else {
            let names = self.0.diverted().names();
            return Err(unknown_name("name", name, "diverted", &names.iter().map(String::as_str).collect::<Vec<_>>()));
        };
        let blocks = StoredBlocks::new("ReadDiverted", schema, blocks);
        Ok(Arc::new(DatasourceTable::new(Arc::new(blocks), None)))
    }
}
