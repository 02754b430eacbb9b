//! Looks up the matches of rows of the right side.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array,
};
use datafusion::arrow::compute::{filter, take};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{JoinSide, JoinType, Result, internal_err};
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::metrics::Count;

use super::bounds::Bounds;
use super::build::{Build, Found, Marks};
use super::max_tree::MaxTree;
use super::sizes::Sizes;
use crate::store::WorkingSet;

/// What a join gives of its rows.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) join_type: JoinType,
    pub(super) schema: SchemaRef,
    /// Where the columns of `schema` come from.
    pub(super) columns: Vec<ColumnIndex>,
    pub(super) filter: Option<JoinFilter>,
    pub(super) bounds: Option<Bounds>,
    /// The columns of the left side.
    pub(super) left: SchemaRef,
    /// The columns of the right side.
    pub(super) right: SchemaRef,
}

/// One side of rows to give.
#[derive(Clone, Copy)]
enum Half<'a> {
    Of(&'a RecordBatch, &'a UInt32Array),
    /// Rows without a match.
    Nulls,
}

impl Shape {
    /// Whether it gives each pair of rows that match.
    pub(super) fn gives_pairs(&self) -> bool {
        matches!(self.join_type, JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full)
    }

    /// Whether it matters which rows of the left side have a match.
    pub(super) fn marks_left(&self) -> bool {
        use JoinType::{Full, Left, LeftAnti, LeftMark, LeftSemi};
        matches!(self.join_type, Left | Full | LeftSemi | LeftAnti | LeftMark)
    }

    /// Whether it matters which rows of the right side have a match.
    pub(super) fn marks_right(&self) -> bool {
        use JoinType::{Full, Right, RightAnti, RightMark, RightSemi};
        matches!(self.join_type, Right | Full | RightSemi | RightAnti | RightMark)
    }

    /// Whether there are no rows where the left side has none.
    pub(super) fn needs_left(&self) -> bool {
        !matches!(self.join_type, JoinType::Right | JoinType::Full | JoinType::RightAnti | JoinType::RightMark)
    }

    /// What it gives of rows of the left side when all of the right one is known.
    pub(super) fn left_rows(&self, build: &Build, from: usize, to: usize) -> Result<Option<RecordBatch>> {
        let Some(marks) = &build.matched else { return Ok(None) };
        let matched = |place: usize| marks.get(place);
        let (places, mark) = self.chosen(from..to, matched, JoinType::LeftSemi, JoinType::LeftMark);
        if places.is_empty() {
            return Ok(None);
        }
        self.assemble(Half::Of(&build.rows, &places), Half::Nulls, mark, places.len()).map(Some)
    }

    /// What it gives of rows of the right side when all of the left one is known.
    pub(super) fn right_rows(
        &self,
        rows: &RecordBatch,
        matched: impl Fn(usize) -> bool,
    ) -> Result<Option<RecordBatch>> {
        let all = 0..rows.num_rows();
        let (places, mark) = self.chosen(all, matched, JoinType::RightSemi, JoinType::RightMark);
        if places.is_empty() {
            return Ok(None);
        }
        self.assemble(Half::Nulls, Half::Of(rows, &places), mark, places.len()).map(Some)
    }

    /// Rows of a side to give, and what marks them: those with a match for a `semi` join, all for a `mark` join, the
    /// others for any other.
    fn chosen(
        &self,
        rows: Range<usize>,
        matched: impl Fn(usize) -> bool,
        semi: JoinType,
        mark: JoinType,
    ) -> (UInt32Array, Option<BooleanArray>) {
        if self.join_type == mark {
            let marks = rows.clone().map(|row| Some(matched(row))).collect();
            return (UInt32Array::from_iter_values(rows.map(|row| row as u32)), Some(marks));
        }
        let wanted = self.join_type == semi;
        let places = rows.filter(|row| matched(*row) == wanted).map(|row| row as u32);
        (UInt32Array::from_iter_values(places), None)
    }

    fn assemble(&self, left: Half, right: Half, mark: Option<BooleanArray>, rows: usize) -> Result<RecordBatch> {
        let mark = mark.map(|mark| Arc::new(mark) as ArrayRef);
        let column = |(at, index): (usize, &ColumnIndex)| -> Result<ArrayRef> {
            let side = match index.side {
                JoinSide::Left => left,
                JoinSide::Right => right,
                JoinSide::None => {
                    return mark.clone().map_or_else(|| internal_err!("a row of a join without its mark"), Ok);
                }
            };
            Ok(match side {
                Half::Of(batch, places) => take(batch.column(index.index), places, None)?,
                Half::Nulls => new_null_array(self.schema.field(at).data_type(), rows),
            })
        };
        let columns = self.columns.iter().enumerate().map(column).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

/// Looks up matches in some rows of the left side.
pub(super) struct Prober {
    shape: Arc<Shape>,
    build: Arc<Build>,
    /// Rows of the left side of which no match is known, where one is enough.
    unmatched: Option<MaxTree>,
    /// What that takes.
    _reserved: Option<WorkingSet>,
    sizes: Sizes,
    /// Pairs that were looked at.
    looked_at: Count,
}

/// Rows of the right side that are being looked up.
pub(super) struct Probe {
    rows: RecordBatch,
    found: Found,
    /// The row that is next,
    row: usize,
    /// and the first row of the left side that it was not compared with.
    at: usize,
    /// Rows with a match, where it matters.
    matched: Vec<bool>,
    /// Pairs that are looked at together.
    pairs_at_once: usize,
    /// Whether what was found needs no condition any more.
    exact: bool,
}

impl Prober {
    /// `reserve` counts bytes.
    pub(super) fn new(
        shape: Arc<Shape>,
        build: Arc<Build>,
        sizes: Sizes,
        looked_at: Count,
        reserve: impl FnOnce(usize) -> Result<WorkingSet>,
    ) -> Result<Self> {
        let one_is_enough = shape.marks_left() && !shape.gives_pairs();
        let _reserved = one_is_enough.then(|| reserve(build.numbers_bytes())).transpose()?;
        let unmatched = one_is_enough.then(|| build.numbers());
        Ok(Self { shape, build, unmatched, _reserved, sizes, looked_at })
    }

    /// Begins to look up rows.
    pub(super) fn look_up(&self, rows: RecordBatch) -> Probe {
        let found = self.build.look_up(&rows);
        let matched = vec![false; if self.shape.marks_right() { rows.num_rows() } else { 0 }];
        let pairs_at_once = self.sizes.rows_with(&rows);
        let exact = found.exact || self.shape.filter.is_none();
        Probe { rows, found, row: 0, at: 0, matched, pairs_at_once, exact }
    }

    /// Looks at the next pairs. Returns the rows that they give.
    pub(super) fn next(&mut self, probe: &mut Probe) -> Result<Option<RecordBatch>> {
        let (left, right) = self.next_pairs(probe);
        self.looked_at.add(left.len());
        let (left, right) = self.passing(UInt32Array::from(left), UInt32Array::from(right), probe)?;
        if let Some(marks) = &self.build.matched {
            left.values().iter().for_each(|place| marks.set(*place as usize));
        }
        if let Some(unmatched) = self.unmatched.as_mut().filter(|_| !probe.exact) {
            left.values().iter().for_each(|place| unmatched.clear(*place as usize));
        }
        if self.shape.marks_right() {
            right.values().iter().for_each(|row| probe.matched[*row as usize] = true);
        }
        if !self.shape.gives_pairs() || left.is_empty() {
            return Ok(None);
        }
        let rows = left.len();
        let (left, right) = (Half::Of(&self.build.rows, &left), Half::Of(&probe.rows, &right));
        self.shape.assemble(left, right, None, rows).map(Some)
    }

    /// The next pairs that may match, as places on both sides.
    fn next_pairs(&mut self, probe: &mut Probe) -> (Vec<u32>, Vec<u32>) {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let (exact, pairs_at_once) = (probe.exact, probe.pairs_at_once);
        let one_is_enough = self.shape.marks_right() && !self.shape.gives_pairs();
        while probe.row < probe.rows.num_rows() && left.len() < pairs_at_once {
            let range = &probe.found.ranges[probe.row];
            let from = probe.at.max(range.start as usize);
            let end = range.end as usize;
            if from >= end || one_is_enough && probe.matched[probe.row] {
                probe.next_row();
                continue;
            }
            if self.unmatched.is_none() && !one_is_enough && !self.build.has_other() {
                let to = end.min(from + pairs_at_once - left.len());
                left.extend(from as u32..to as u32);
                right.extend(std::iter::repeat_n(probe.row as u32, to - from));
                probe.at = to;
                continue;
            }
            let least = probe.found.least(probe.row);
            let place = match &self.unmatched {
                Some(unmatched) => unmatched.next_above(least, from, end),
                None => self.build.next_above(least, from..end),
            };
            let Some(place) = place else {
                probe.next_row();
                continue;
            };
            left.push(place as u32);
            right.push(probe.row as u32);
            probe.at = place + 1;
            if exact && let Some(unmatched) = &mut self.unmatched {
                unmatched.clear(place);
            }
            if exact && one_is_enough {
                probe.next_row();
            }
        }
        (left, right)
    }

    /// The pairs for which the whole condition holds.
    fn passing(&self, left: UInt32Array, right: UInt32Array, probe: &Probe) -> Result<(UInt32Array, UInt32Array)> {
        let Some(condition) = self.shape.filter.as_ref().filter(|_| !probe.exact && !left.is_empty()) else {
            return Ok((left, right));
        };
        let column = |index: &ColumnIndex| match index.side {
            JoinSide::Left => Ok(take(self.build.rows.column(index.index), &left, None)?),
            JoinSide::Right => Ok(take(probe.rows.column(index.index), &right, None)?),
            JoinSide::None => internal_err!("a condition of a join on a mark"),
        };
        let columns = condition.column_indices().iter().map(column).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(left.len()));
        let pairs = RecordBatch::try_new_with_options(Arc::clone(condition.schema()), columns, &options)?;
        let holds = condition.expression().evaluate(&pairs)?.into_array(left.len())?;
        let holds = holds.as_boolean();
        Ok((filter(&left, holds)?.as_primitive().clone(), filter(&right, holds)?.as_primitive().clone()))
    }

    /// When all pairs have been looked at: what it gives of the rows of the right side, which is noted in
    /// `marks` instead where there are more rows of the left side. They begin at row `first` there. Nothing else is
    /// to come.
    pub(super) fn end(&self, probe: &Probe, marks: Option<(&Marks, usize)>) -> Result<Option<RecordBatch>> {
        match marks {
            _ if !self.shape.marks_right() => Ok(None),
            Some((marks, first)) => {
                let matched = probe.matched.iter().enumerate().filter(|(_, matched)| **matched);
                matched.for_each(|(row, _)| marks.set(first + row));
                Ok(None)
            }
            None => self.shape.right_rows(&probe.rows, |row| probe.matched[row]),
        }
    }
}

impl Probe {
    fn next_row(&mut self) {
        self.row += 1;
        self.at = 0;
    }

    /// Whether all pairs have been looked at.
    pub(super) fn is_done(&self) -> bool {
        self.row >= self.rows.num_rows()
    }

    /// Whether its rows are so wide that batches have fewer than these.
    pub(super) fn is_wide(&self, rows: usize) -> bool {
        self.pairs_at_once < rows
    }

    pub(super) fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }
}
