//! Which rows of a table are in a part of it, by their numbers.

use std::fmt;
use std::ops::Range;

use datafusion::common::{Result, plan_err};

use super::Turns;

/// A part of the rows of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Hash)]
pub enum RowPart {
    /// One of several parts of neighbours, which differ by a row at most, or have equally many.
    Nth {
        /// The number of the part, from 0 on.
        part: usize,
        /// How many there are.
        parts: usize,
        /// Whether they are equal: the last rows, less than there are parts, are in none.
        equal: bool,
    },
    /// From one row on to before another, or to the end.
    Between(usize, Option<usize>),
    /// Between two of the places that divide all rows in proportion, rounded down as Ray does.
    Proportional {
        /// The parts but for the last, as the bits of an `f64` each, which can be compared.
        proportions: Vec<u64>,
        /// The number of the part, from 0 on.
        part: usize,
    },
    /// All but so many of the last rows, or these.
    Last {
        /// How many; at least 1, and not all.
        rows: usize,
        /// Whether it is these.
        is_last: bool,
    },
    /// What one of several gets by turns.
    Turns {
        /// How rows are dealt.
        turns: TurnsOf,
        /// Which of them it is.
        index: usize,
    },
}

/// How rows are dealt by turns of so many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Hash)]
pub struct TurnsOf {
    pub(crate) turns: Turns,
    pub(crate) rows: usize,
}

impl RowPart {
    /// Whether the number of all rows says which rows these are.
    pub fn needs_count(&self) -> bool {
        match self {
            Self::Between(..) => false,
            Self::Turns { turns: TurnsOf { turns, .. }, .. } => {
                turns.equal || turns.drop_last || turns.by_batches.is_none()
            }
            _ => true,
        }
    }

    /// The `k`-th range of rows of the part, of so many rows where that is known; `None` behind the last.
    pub(crate) fn range(&self, k: u64, total: Option<u64>) -> Result<Option<Range<u64>>> {
        let all = total.unwrap_or(u64::MAX);
        let once = |range: Range<u64>| Ok(Some(range).filter(|_| k == 0));
        let count = |rows: u64| rows as usize;
        match self {
            Self::Nth { part, parts, equal: false } => {
                let at = |part: usize| (part as u128 * u128::from(all) / *parts as u128) as u64;
                once(at(*part)..at(part + 1))
            }
            Self::Nth { part, parts, equal: true } => {
                let each = all / *parts as u64;
                once(*part as u64 * each..(*part as u64 + 1) * each)
            }
            Self::Between(from, to) => once(*from as u64..to.map_or(u64::MAX, |to| to as u64).max(*from as u64)),
            Self::Proportional { proportions, part } => {
                let proportions: Vec<f64> = proportions.iter().copied().map(f64::from_bits).collect();
                let cuts = proportional_cuts(count(all), &proportions);
                if cuts.first().is_none_or(|first| *first == 0) {
                    return plan_err!("{all} rows cannot be split into {} parts that have rows", proportions.len() + 1);
                }
                let at = |cut: Option<usize>| cut.map_or(0, |cut| cuts.get(cut).map_or(all, |row| *row as u64));
                once(at(part.checked_sub(1))..at(Some(*part)))
            }
            Self::Last { rows, .. } if *rows as u64 >= all => {
                plan_err!("the test size must be at least 1 and less than all {all} rows, got {rows}")
            }
            Self::Last { rows, is_last: true } => once(all - *rows as u64..all),
            Self::Last { rows, is_last: false } => once(0..all - *rows as u64),
            Self::Turns { turns, index } => {
                let begin = k * turns.rows as u64;
                if begin >= all {
                    return Ok(None);
                }
                let rows = count((turns.rows as u64).min(all - begin));
                let part = turns.turns.parts(rows).get(*index).cloned().unwrap_or_default();
                Ok(Some(begin + part.start as u64..begin + part.end as u64))
            }
        }
    }
}

/// Where `rows` are cut into such parts: rounded down, and before that moved so that no part is empty that need not be.
pub(crate) fn proportional_cuts(rows: usize, proportions: &[f64]) -> Vec<usize> {
    let mut total = 0.0;
    let mut cut = |part: &f64| {
        total += part;
        (rows as f64 * total) as usize
    };
    let mut cuts: Vec<usize> = proportions.iter().map(&mut cut).collect();
    let mut moved = 0;
    for place in (0..cuts.len().saturating_sub(1)).rev() {
        cuts[place] = cuts[place].saturating_sub(moved);
        if cuts[place] == cuts[place + 1] {
            moved += 1;
            cuts[place] = cuts[place].saturating_sub(1);
        }
    }
    cuts
}

/// Fails where rows at which parts begin are not in order.
pub(crate) fn check_indices(indices: &[usize]) -> Result<()> {
    match indices.windows(2).find(|pair| pair[0] > pair[1]) {
        Some(pair) => plan_err!("indices must be in order, got {} before {}", pair[0], pair[1]),
        None => Ok(()),
    }
}

/// Fails where proportions are none.
pub(crate) fn check_proportions(proportions: &[f64]) -> Result<()> {
    if proportions.is_empty() {
        return plan_err!("split_proportionately needs at least one proportion");
    }
    if let Some(proportion) = proportions.iter().find(|part| !(part.is_finite() && **part > 0.0)) {
        return plan_err!("proportions must be above 0, got {proportion}");
    }
    let total: f64 = proportions.iter().sum();
    match total >= 1.0 {
        true => plan_err!("proportions must be below 1 together, since the rest is a part too, got {total}"),
        false => Ok(()),
    }
}

impl fmt::Display for RowPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth { part, parts, equal } => write!(f, "part={part} of {parts}, equal={equal}"),
            Self::Between(from, None) => write!(f, "rows={from}.."),
            Self::Between(from, Some(to)) => write!(f, "rows={from}..{to}"),
            Self::Proportional { part, proportions } => {
                write!(f, "part={part} of {} in proportion", proportions.len() + 1)
            }
            Self::Last { rows, is_last: true } => write!(f, "last={rows}"),
            Self::Last { rows, is_last: false } => write!(f, "all but last={rows}"),
            Self::Turns { turns, index } => {
                write!(f, "turns of {} rows, index={index} of {}", turns.rows, turns.turns.n)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_rounded_down_and_leave_no_part_empty() {
        assert_eq!(proportional_cuts(10, &[0.2, 0.5]), [2, 7]);
        assert_eq!(proportional_cuts(3, &[0.3, 0.1]), [0, 1]);
        assert_eq!(proportional_cuts(5, &[0.9]), [4]);
    }
}
