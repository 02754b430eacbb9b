//! Where a row stands.

use crate::block::TaskId;

/// Where a row stands: the task that it is of, as far as that follows from the data, and its number in it. Where the
/// plan cannot begin in its middle, all rows are one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The task.
    pub(crate) id: TaskId,
    /// The number of the row.
    pub(crate) row: u64,
}

impl Mark {
    /// The first row.
    pub(crate) fn start() -> Self {
        Self { id: TaskId::root(0), row: 0 }
    }

    /// So many rows further in the same task.
    pub(crate) fn behind(&self, rows: usize) -> Self {
        Self { id: self.id.clone(), row: self.row + rows as u64 }
    }
}
