//! How rows are dealt to several by turns.

use std::ops::Range;

/// How the rows of a turn become parts, one for each of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub(crate) struct Turns {
    /// How many get parts.
    pub(crate) n: usize,
    /// Rows of a whole turn; without that, they are as they come.
    pub(crate) rows: Option<usize>,
    /// Rows of each part, where the parts of a short turn are as long as long as there are rows.
    pub(crate) by_batches: Option<usize>,
    /// Whether the parts of a short turn are equally long, and its last rows are left out.
    pub(crate) equal: bool,
    /// Whether a short turn is left out.
    pub(crate) drop_last: bool,
    /// A turn is one part, for whoever asks.
    pub(crate) by_demand: bool,
}

impl Turns {
    /// Where the parts of a turn of so many rows begin and end; an empty part is none.
    pub(crate) fn parts(&self, rows: usize) -> Vec<Range<usize>> {
        let n = self.n;
        let is_short = self.rows.is_some_and(|whole| rows < whole);
        match self.by_batches {
            _ if is_short && self.drop_last => vec![0..0; n],
            _ if self.by_demand => std::iter::once(0..rows).collect(),
            _ if is_short && self.equal => (0..n).map(|part| part * (rows / n)..(part + 1) * (rows / n)).collect(),
            Some(size) => (0..n).map(|part| (part * size).min(rows)..((part + 1) * size).min(rows)).collect(),
            None => (0..n).map(|part| part * rows / n..(part + 1) * rows / n).collect(),
        }
    }
}
