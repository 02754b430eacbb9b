//! What files say of the values of their columns.

use std::collections::BTreeMap;

/// The least and the greatest value of columns of whole numbers and days, by their names. It is what files say of
/// themselves, to estimate with.
#[derive(Debug, Clone, Default)]
pub(crate) struct ValueRanges(BTreeMap<String, Option<(i64, i64)>>);

impl ValueRanges {
    /// Says that some values of a column are in a range, or that nothing is known of them.
    pub(crate) fn note(&mut self, column: &str, range: Option<(i64, i64)>) {
        let known = self.0.entry(column.to_owned()).or_insert(range);
        *known = match (*known, range) {
            (Some((low, high)), Some((from, to))) => Some((low.min(from), high.max(to))),
            _ => None,
        };
    }

    /// Those of both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        other.0.into_iter().for_each(|(column, range)| self.note(&column, range));
        self
    }

    /// That of a column, if it is known.
    pub(crate) fn of(&self, column: &str) -> Option<(i64, i64)> {
        self.0.get(column).copied().flatten()
    }
}
