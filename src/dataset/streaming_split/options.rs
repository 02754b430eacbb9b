//! How rows are dealt to consumers.

use std::time::Duration;

use datafusion::common::{Result, plan_err};

use crate::config::ByteSize;
use crate::dataset::ResumeToken;

/// Who waits for whom between epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SplitBarrier {
    /// An epoch begins when all have finished the one before, or given it up.
    #[default]
    Epoch,
    /// Nobody waits.
    None,
}

/// How rows are dealt to consumers: by turns, in which each gets neighbouring rows.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitOptions {
    /// Everyone gets equally many rows, and as many batches: the last rows, less than there are consumers, are left
    /// out.
    pub equal: bool,
    /// Rows that each consumer gets in a turn; at least 1. Not with `global_batch_size`.
    pub batch_size: Option<usize>,
    /// Rows of a turn for all consumers together: whatever their number, turn `s` has the same rows.
    pub global_batch_size: Option<usize>,
    /// Leaves out the last turn when it is short.
    pub drop_last: bool,
    /// Who waits for whom between epochs.
    pub barrier: SplitBarrier,
    /// Bytes that may wait for each consumer.
    pub buffer_bytes: ByteSize,
    /// How long a consumer waits for others before that is an error; for ever if not said.
    pub max_wait: Option<Duration>,
    /// Goes on behind the turn at which a token was taken, also with another number of consumers if it was taken with
    /// the same `global_batch_size`.
    pub resume: Option<ResumeToken>,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self {
            equal: false,
            batch_size: Some(256),
            global_batch_size: None,
            drop_last: false,
            barrier: SplitBarrier::Epoch,
            buffer_bytes: ByteSize::mib(64),
            max_wait: None,
            resume: None,
        }
    }
}

impl SplitOptions {
    /// A turn of so many rows for all consumers together.
    pub fn of_global_batches(rows: usize) -> Self {
        Self { batch_size: None, global_batch_size: Some(rows), ..Self::default() }
    }

    /// How rows are dealt to `n` consumers.
    pub(super) fn deal(&self, n: usize) -> Result<Deal> {
        if n == 0 {
            return plan_err!("streaming_split needs at least 1 consumer, got 0");
        }
        let turn_rows = match (self.batch_size, self.global_batch_size) {
            (Some(0), _) => return plan_err!("batch_size must be at least 1, got 0"),
            (_, Some(0)) => return plan_err!("global_batch_size must be at least 1, got 0"),
            (Some(_), Some(_)) => return plan_err!("a split has either a batch_size or a global_batch_size, not both"),
            (None, None) => return plan_err!("a split needs a batch_size or a global_batch_size"),
            (Some(rows), None) => rows.saturating_mul(n),
            (None, Some(rows)) if self.equal && rows % n != 0 => {
                return plan_err!("equal needs a global_batch_size that {n} consumers divide, got {rows}");
            }
            (None, Some(rows)) => rows,
        };
        Ok(Deal { n, turn_rows, by_batches: self.batch_size, equal: self.equal, drop_last: self.drop_last })
    }
}

/// How the rows of a turn become parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deal {
    pub(super) n: usize,
    /// Rows of a whole turn.
    pub(super) turn_rows: usize,
    /// Rows of each part, where the parts of a short turn are as long as long as there are rows.
    by_batches: Option<usize>,
    equal: bool,
    drop_last: bool,
}

impl Deal {
    /// Where the parts of a turn of so many rows begin and end; an empty part is none.
    pub(super) fn parts(&self, rows: usize) -> Vec<std::ops::Range<usize>> {
        let n = self.n;
        let is_short = rows < self.turn_rows;
        match self.by_batches {
            _ if is_short && self.drop_last => vec![0..0; n],
            _ if is_short && self.equal => (0..n).map(|part| part * (rows / n)..(part + 1) * (rows / n)).collect(),
            Some(size) => (0..n).map(|part| (part * size).min(rows)..((part + 1) * size).min(rows)).collect(),
            None => (0..n).map(|part| part * rows / n..(part + 1) * rows / n).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_parted() {
        let deal = |options: SplitOptions, n| options.deal(n).unwrap();
        let lengths = |deal: Deal, rows| deal.parts(rows).into_iter().map(|part| part.len()).collect::<Vec<_>>();
        let batches = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
        let three = deal(batches.clone(), 3);
        assert_eq!(three.turn_rows, 30);
        assert_eq!(lengths(three, 30), [10, 10, 10]);
        assert_eq!(lengths(three, 14), [10, 4, 0]);
        assert_eq!(lengths(deal(SplitOptions { equal: true, ..batches.clone() }, 3), 14), [4, 4, 4]);
        assert_eq!(lengths(deal(SplitOptions { drop_last: true, ..batches }, 3), 14), [0, 0, 0]);
        let global = deal(SplitOptions::of_global_batches(10), 3);
        assert_eq!(lengths(global, 10), [3, 3, 4]);
        assert_eq!(lengths(global, 2), [0, 1, 1]);
    }
}
