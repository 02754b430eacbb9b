//! Where a row stands, and where a plan begins.

use serde::{Deserialize, Serialize};

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

/// Where a plan begins. The empty one is its first row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// What the operator has to know, in its own terms.
    #[serde(rename = "n", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) numbers: Vec<u64>,
    /// Where its inputs begin.
    #[serde(rename = "i", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inputs: Vec<Place>,
    /// The number, in its task, of the first row that comes from there.
    #[serde(rename = "f", default, skip_serializing_if = "is_zero")]
    pub(crate) first_row: u64,
    /// How many rows come from there before the one that is meant.
    #[serde(rename = "s", default, skip_serializing_if = "is_zero")]
    pub(crate) skip: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Place {
    /// The row of number `row` of a plan that has to begin anew.
    pub(crate) fn replayed(row: u64) -> Self {
        Self { skip: row, ..Self::default() }
    }

    /// Whether it is a place of a plan that begins anew.
    pub(super) fn is_replayed(&self) -> bool {
        self.numbers.is_empty() && self.inputs.is_empty()
    }
}
