//! How rows are dealt to consumers.

use std::time::Duration;

use datafusion::common::{Result, plan_err};

use crate::config::ByteSize;
use crate::functions::Turns;
use crate::token::ResumeToken;

/// Who waits for whom between epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SplitBarrier {
    /// An epoch begins when all have finished the one before, or given it up.
    #[default]
    Epoch,
    /// What is an epoch otherwise is a window of a pipeline here, and begins when all have finished the one before.
    Window,
    /// Nobody waits.
    None,
}

/// Who gets which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Deal {
    /// By turns: batch `k` of consumer `i` depends on `k`, `i` and the number of consumers alone.
    #[default]
    Turns,
    /// Whoever asks gets the next batch. There are no tokens.
    Demand,
}

/// What happens when a consumer is gone in the middle of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLost {
    /// All others get an error, with a token behind the last turn that all had acknowledged.
    #[default]
    Fail,
    /// It may come back within this time, and goes on at its first batch that was not acknowledged; otherwise as
    /// `Fail`.
    Wait(Duration),
    /// Others get what it had not acknowledged. By demand only.
    Redistribute,
}

/// How rows are dealt to consumers.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitOptions {
    /// Everyone gets equally many rows, and as many batches: the last rows, less than there are consumers, are left
    /// out.
    pub equal: bool,
    /// Rows that each consumer gets in a turn; at least 1. Not with `global_batch_size`. By demand `None` means batches
    /// as they come.
    pub batch_size: Option<usize>,
    /// Rows of a turn for all consumers together: whatever their number, turn `s` has the same rows.
    pub global_batch_size: Option<usize>,
    /// Leaves out the last turn when it is short.
    pub drop_last: bool,
    /// Who waits for whom between epochs.
    pub barrier: SplitBarrier,
    /// Who gets which rows.
    pub deal: Deal,
    /// Bytes that may wait for each consumer; by demand, for all of them. They are in the store, and spill.
    pub buffer_bytes: ByteSize,
    /// What happens when a consumer is gone in the middle of an epoch.
    pub on_lost: OnLost,
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
            deal: Deal::Turns,
            buffer_bytes: ByteSize::mib(64),
            on_lost: OnLost::Fail,
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

    /// How rows are dealt to `n` consumers. Fails where options do not go together.
    pub(super) fn turns(&self, n: usize) -> Result<Turns> {
        match self {
            Self { deal: Deal::Demand, global_batch_size: Some(_), .. } => {
                plan_err!("global batches are dealt by turns, not by demand")
            }
            Self { deal: Deal::Demand, equal: true, .. } => {
                plan_err!("equal parts are dealt by turns, not by demand")
            }
            Self { deal: Deal::Demand, resume: Some(_), .. } => {
                plan_err!("what is dealt by demand has no tokens, and cannot go on at one")
            }
            Self { deal: Deal::Turns, on_lost: OnLost::Redistribute, .. } => {
                plan_err!("what a lost consumer had is given to others by demand only, not by turns")
            }
            Self { deal: Deal::Demand, .. } => Turns::by_demand(n, self.batch_size, self.drop_last),
            Self { deal: Deal::Turns, .. } => {
                Turns::of(n, (self.batch_size, self.global_batch_size), self.equal, self.drop_last)
            }
        }
    }

    /// How consumers depend on each other.
    pub(super) fn rules(&self) -> Rules {
        Rules {
            barrier: self.barrier != SplitBarrier::None,
            by_demand: self.deal == Deal::Demand,
            on_lost: self.on_lost,
            buffer_bytes: self.buffer_bytes.0.max(1),
        }
    }
}

/// How consumers depend on each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Nobody enters an epoch before all have finished the one before.
    pub(super) barrier: bool,
    /// Parts are for whoever asks first.
    pub(super) by_demand: bool,
    pub(super) on_lost: OnLost,
    /// Bytes that wait for a consumer, or for all of them by demand.
    pub(super) buffer_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_parted() {
        let turns = |options: SplitOptions, n| options.turns(n).unwrap();
        let lengths = |turns: Turns, rows| turns.parts(rows).into_iter().map(|part| part.len()).collect::<Vec<_>>();
        let batches = SplitOptions { batch_size: Some(10), ..SplitOptions::default() };
        let three = turns(batches.clone(), 3);
        assert_eq!(three.rows, Some(30));
        assert_eq!(lengths(three, 30), [10, 10, 10]);
        assert_eq!(lengths(three, 14), [10, 4, 0]);
        assert_eq!(lengths(turns(SplitOptions { equal: true, ..batches.clone() }, 3), 14), [4, 4, 4]);
        assert_eq!(lengths(turns(SplitOptions { drop_last: true, ..batches }, 3), 14), [0, 0, 0]);
        let global = turns(SplitOptions::of_global_batches(10), 3);
        assert_eq!(lengths(global, 10), [3, 3, 4]);
        assert_eq!(lengths(global, 2), [0, 1, 1]);
    }
}
