//! Numbers of rows and ranks.

use std::fmt;
use std::iter::repeat_n;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, UInt64Array};
use datafusion::common::Result;
use datafusion::functions_window::rank::Rank;
use datafusion::functions_window::row_number::RowNumber;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::WindowUDFExpr;

use super::CumulativeWindow;
use super::rows::{Groups, Rows};

/// How rows are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ranking {
    /// `row_number()`
    Rows,
    /// `rank()`
    Ranks,
    /// `dense_rank()`
    DenseRanks,
}

impl Ranking {
    const ALL: [Self; 3] = [Self::Rows, Self::Ranks, Self::DenseRanks];

    /// What SQL calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Rows => "row_number",
            Self::Ranks => "rank",
            Self::DenseRanks => "dense_rank",
        }
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a window numbers rows, if it does.
pub(crate) fn ranking_of(window: &dyn WindowExpr) -> Option<Ranking> {
    let window = window.as_any().downcast_ref::<StandardWindowExpr>()?;
    let function = window.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>()?.fun();
    let is_numbering = function.inner().is::<RowNumber>() || function.inner().is::<Rank>();
    Ranking::ALL.into_iter().find(|ranking| is_numbering && function.name() == ranking.name())
}

/// A window that numbers rows.
pub(super) struct Ranked {
    ranking: Ranking,
    /// Rows of the partition so far.
    rows: u64,
    /// What the last of them has.
    rank: u64,
}

impl Ranked {
    pub(super) fn new(ranking: Ranking) -> Self {
        Self { ranking, rows: 0, rank: 0 }
    }

    fn ranks(&mut self, partitions: &Groups, peers: &Groups, told: &mut Vec<u64>) {
        let mut starts = partitions.ranges.iter().map(|range| range.start).skip(usize::from(partitions.continues));
        let mut next = starts.next();
        for (number, group) in peers.ranges.iter().enumerate() {
            if next == Some(group.start) {
                (self.rows, self.rank) = (0, 0);
                next = starts.next();
            }
            if number > 0 || !peers.continues {
                let dense = self.ranking == Ranking::DenseRanks;
                self.rank = if dense { self.rank + 1 } else { self.rows + 1 };
            }
            self.rows += group.len() as u64;
            told.extend(repeat_n(self.rank, group.len()));
        }
    }

    fn numbers(&mut self, partitions: &Groups, told: &mut Vec<u64>) {
        for (number, partition) in partitions.ranges.iter().enumerate() {
            if number > 0 || !partitions.continues {
                self.rows = 0;
            }
            let first = self.rows + 1;
            self.rows += partition.len() as u64;
            told.extend(first..=self.rows);
        }
    }
}

impl CumulativeWindow for Ranked {
    fn next(&mut self, rows: &Rows<'_>) -> Result<ArrayRef> {
        let mut told = Vec::with_capacity(rows.batch.num_rows());
        match self.ranking {
            Ranking::Rows => self.numbers(&rows.partitions, &mut told),
            Ranking::Ranks | Ranking::DenseRanks => self.ranks(&rows.partitions, &rows.peers, &mut told),
        }
        Ok(Arc::new(UInt64Array::from(told)))
    }
}
