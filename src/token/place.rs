//! Where a plan begins, as a value.

use serde::{Deserialize, Serialize};

/// Where a plan begins. The empty one is its first row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    pub(crate) fn is_replayed(&self) -> bool {
        self.numbers.is_empty() && self.inputs.is_empty()
    }
}
