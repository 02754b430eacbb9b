//! How rows are dealt to several by turns.

use std::ops::Range;

use datafusion::common::{Result, plan_err};

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
    /// Turns for `n`, each of whom gets `batch_size` rows, or for all of whom there are `global_batch_size`.
    ///
    /// # Errors
    ///
    /// Where these do not go together.
    pub(crate) fn of(
        n: usize,
        (batch_size, global_batch_size): (Option<usize>, Option<usize>),
        equal: bool,
        drop_last: bool,
    ) -> Result<Self> {
        let rows = match (batch_size, global_batch_size) {
            _ if n == 0 => return plan_err!("streaming_split needs at least 1 consumer, got 0"),
            (Some(0), _) => return plan_err!("batch_size must be at least 1, got 0"),
            (_, Some(0)) => return plan_err!("global_batch_size must be at least 1, got 0"),
            (Some(_), Some(_)) => return plan_err!("a split has either a batch_size or a global_batch_size, not both"),
            (None, None) => return plan_err!("a split needs a batch_size or a global_batch_size"),
            (None, Some(rows)) if equal && rows % n != 0 => {
                return plan_err!("equal needs a global_batch_size that {n} consumers divide, got {rows}");
            }
            (Some(rows), None) => rows.saturating_mul(n),
            (None, Some(rows)) => rows,
        };
        Ok(Self { n, rows: Some(rows), by_batches: batch_size, equal, drop_last, by_demand: false })
    }

    /// One part for whoever asks: of so many rows, or as they come.
    ///
    /// # Errors
    ///
    /// Where nobody would ask, or parts would have no rows.
    pub(crate) fn by_demand(n: usize, batch_size: Option<usize>, drop_last: bool) -> Result<Self> {
        match batch_size {
            Some(_) => {
                let turns = Self::of(n, (batch_size, None), false, drop_last)?;
                Ok(Self { rows: batch_size, by_demand: true, ..turns })
            }
            None if drop_last => plan_err!("drop_last needs a batch_size: without one, no batch is short"),
            None => Ok(Self { rows: None, ..Self::by_demand(n, Some(1), false)? }),
        }
    }

    /// Where the parts of a turn of so many rows begin and end; an empty part is none.
    pub(crate) fn parts(&self, rows: usize) -> Vec<Range<usize>> {
        let n = self.n;
        let is_short = self.rows.is_some_and(|whole| rows < whole);
        match self.by_batches {
            _ if is_short && self.drop_last => vec![0..0; n],
            _ if self.by_demand => std::iter::once(0..rows).collect(),
            _ if is_short && self.equal => (0..n).map(|part| part * (rows / n)..(part + 1) * (rows / n)).collect(),
            Some(size) => {
                let begin = |part: usize| part.saturating_mul(size).min(rows);
                (0..n).map(|part| begin(part)..begin(part + 1)).collect()
            }
            None => (0..n).map(|part| part * rows / n..(part + 1) * rows / n).collect(),
        }
    }
}
