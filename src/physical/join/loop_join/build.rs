//! The rows of the left side, or some of them, in the order in which matches are looked up.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::arrow::array::{RecordBatch, UInt32Array};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, resources_err};
use datafusion::logical_expr::Operator;
use datafusion::physical_plan::PhysicalExpr;

use super::bounds::Bounds;
use super::keys::{KeyMaker, Keys, SortedKeys};
use super::max_tree::MaxTree;
use crate::block::sliced_bytes;
use crate::store::WorkingSet;

/// The most rows: their places are numbers of 32 bits.
pub(super) const MAX_ROWS: usize = u32::MAX as usize;

/// Rows of the left side. Those that some bound excludes from all matches come last.
#[derive(Debug)]
pub(super) struct Build {
    pub(super) rows: RecordBatch,
    bounds: Option<Bounds>,
    /// Whether what is looked up are the matches, all of them and nothing else.
    exact: bool,
    /// By what they are sorted.
    key: Option<(KeyMaker, SortedKeys)>,
    /// What else is compared.
    other: Option<Other>,
    /// Those that have a match, where somebody asks.
    pub(super) matched: Option<Marks>,
    _reserved: WorkingSet,
}

/// A comparison with something by which rows are not sorted.
///
/// Each row has a number, greater for whom more compares as asked: by the place of its value in the order of all. A
/// value of the right side compares with the rows above its own number.
#[derive(Debug)]
struct Other {
    maker: KeyMaker,
    sorted: SortedKeys,
    numbers: MaxTree,
}

impl Build {
    /// Sorts `rows`, whose bytes are counted in `reserved`. With `matched`, those with a match are marked.
    ///
    /// What cannot be computed of some row is not looked up: the condition may never ask for it, or fails itself.
    pub(super) fn new(
        schema: &SchemaRef,
        rows: &[RecordBatch],
        bounds: Option<&Bounds>,
        matched: bool,
        mut reserved: WorkingSet,
    ) -> Result<Self> {
        let rows_bytes: usize = rows.iter().map(sliced_bytes).sum();
        let together = concat_batches(schema, rows)?;
        if together.num_rows() > MAX_ROWS {
            return resources_err!("a join cannot hold {} rows of a block at once", together.num_rows());
        }
        let matched = matched.then(|| Marks::new(together.num_rows()));
        let of_key = bounds.and_then(|bounds| keys(&bounds.key, &together).ok());
        let (Some(bounds), Some((maker, of_key))) = (bounds, of_key) else {
            reserved.resize(rows_bytes)?;
            let (rows, exact) = (together, false);
            return Ok(Self { rows, bounds: None, exact, key: None, other: None, matched, _reserved: reserved });
        };
        let of_other = bounds.other.as_ref().and_then(|other| keys(&other.left, &together).ok());
        let exact = bounds.exact && of_other.is_some() == bounds.other.is_some();
        let has_other = |at: usize| of_other.as_ref().is_none_or(|(_, keys)| !keys.is_null(at));
        let sorted = SortedKeys::new(of_key, has_other);
        let order = &sorted.order;
        let other = of_other.map(|(maker, keys)| Other::new(maker, keys, order, bounds));
        let mut is_in = vec![false; together.num_rows()];
        order.iter().for_each(|at| is_in[*at as usize] = true);
        let excluded = (0..together.num_rows() as u32).filter(|at| !is_in[*at as usize]);
        let order = UInt32Array::from_iter_values(order.iter().copied().chain(excluded));
        let rows = take_record_batch(&together, &order)?;
        let tables = sorted.bytes() + other.as_ref().map_or(0, Other::bytes);
        reserved.resize(rows_bytes + tables)?;
        let (bounds, key) = (Some(bounds.clone()), Some((maker, sorted)));
        Ok(Self { rows, bounds, exact, key, other, matched, _reserved: reserved })
    }

    /// Bytes of a copy of the numbers of the rows.
    pub(super) fn numbers_bytes(&self) -> usize {
        MaxTree::bytes(self.candidates())
    }

    /// The numbers of the rows, which a comparison beside the key looks at. Without one each has the number 1.
    pub(super) fn numbers(&self) -> MaxTree {
        match &self.other {
            Some(other) => other.numbers.clone(),
            None => MaxTree::new(&vec![1; self.candidates()]),
        }
    }

    /// The next of these rows that is above a number.
    pub(super) fn next_above(&self, least: u32, rows: Range<usize>) -> Option<usize> {
        match &self.other {
            Some(other) => other.numbers.next_above(least, rows.start, rows.end),
            None => Some(rows.start).filter(|start| *start < rows.end),
        }
    }

    /// Whether numbers of rows have to be looked at.
    pub(super) fn has_other(&self) -> bool {
        self.other.is_some()
    }

    /// Rows that may have any match at all.
    fn candidates(&self) -> usize {
        self.key.as_ref().map_or(self.rows.num_rows(), |(_, sorted)| sorted.len())
    }

    /// Looks up rows of the right side: of each the rows that the key leaves, and the number above which they have to
    /// be.
    pub(super) fn look_up(&self, right: &RecordBatch) -> Found {
        let (all, rows) = (self.candidates(), right.num_rows());
        let mut found = Found { ranges: vec![0..all as u32; rows], least: Vec::new(), exact: self.exact };
        let (Some(bounds), Some((maker, sorted))) = (&self.bounds, &self.key) else { return found };
        let keys = |maker: &KeyMaker, expression: &Arc<dyn PhysicalExpr>| {
            maker.keys(&expression.evaluate(right)?.into_array(rows)?)
        };
        for (operator, limit) in &bounds.limits {
            let Ok(limits) = keys(maker, limit) else {
                found.exact = false;
                continue;
            };
            for (at, range) in found.ranges.iter_mut().enumerate().filter(|(_, range)| range.start < range.end) {
                match operator {
                    _ if limits.is_null(at) => range.end = range.start,
                    Operator::Lt => range.end = range.end.min(sorted.less_than(&limits, at) as u32),
                    Operator::LtEq => range.end = range.end.min(sorted.up_to(&limits, at) as u32),
                    Operator::Gt => range.start = range.start.max(sorted.up_to(&limits, at) as u32),
                    _ => range.start = range.start.max(sorted.less_than(&limits, at) as u32),
                }
            }
        }
        let (Some(other), Some(comparison)) = (&self.other, &bounds.other) else { return found };
        let Ok(values) = keys(&other.maker, &comparison.right) else {
            found.exact = false;
            return found;
        };
        found.least = vec![0; rows];
        for (at, range) in found.ranges.iter_mut().enumerate().filter(|(_, range)| range.start < range.end) {
            match values.is_null(at) {
                true => range.end = range.start,
                false => found.least[at] = other.least(comparison.operator, &values, at),
            }
        }
        found
    }
}

/// The keys of rows of the left side.
fn keys(expression: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<(KeyMaker, Keys)> {
    let values = expression.evaluate(rows)?.into_array(rows.num_rows())?;
    let maker = KeyMaker::new(values.data_type().clone())?;
    let keys = maker.keys(&values)?;
    Ok((maker, keys))
}

/// What was found of the rows of the right side.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) ranges: Vec<Range<u32>>,
    /// Empty where it is 0 for all.
    least: Vec<u32>,
    /// Whether these are the matches, all of them and nothing else.
    pub(super) exact: bool,
}

impl Found {
    /// The number above which a match of a row has to be.
    pub(super) fn least(&self, row: usize) -> u32 {
        self.least.get(row).copied().unwrap_or(0)
    }
}

impl Other {
    /// The values in `keys` of rows that will have the order `order`.
    fn new(maker: KeyMaker, keys: Keys, order: &[u32], bounds: &Bounds) -> Self {
        let sorted = SortedKeys::new(keys, |_| true);
        let mut numbers = vec![0; sorted.order.iter().max().map_or(0, |last| *last as usize + 1)];
        let greater =
            bounds.other.as_ref().is_some_and(|other| matches!(other.operator, Operator::Gt | Operator::GtEq));
        for (place, row) in sorted.order.iter().enumerate() {
            numbers[*row as usize] = if greater { place + 1 } else { sorted.len() - place } as u32;
        }
        let ordered: Vec<u32> = order.iter().map(|row| numbers[*row as usize]).collect();
        Self { maker, sorted, numbers: MaxTree::new(&ordered) }
    }

    fn bytes(&self) -> usize {
        self.sorted.bytes() + MaxTree::bytes(self.sorted.len())
    }

    /// The number above which the rows are whose value compares so with this one.
    fn least(&self, operator: Operator, values: &Keys, at: usize) -> u32 {
        let places = self.sorted.len();
        let least = match operator {
            Operator::Gt => self.sorted.up_to(values, at),
            Operator::GtEq => self.sorted.less_than(values, at),
            Operator::Lt => places - self.sorted.less_than(values, at),
            _ => places - self.sorted.up_to(values, at),
        };
        least as u32
    }
}

/// One bit for each of some rows, which several threads set.
#[derive(Debug)]
pub(super) struct Marks(Vec<AtomicU64>);

impl Marks {
    pub(super) fn new(rows: usize) -> Self {
        Self((0..rows.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn set(&self, row: usize) {
        let bit = 1 << (row % 64);
        // Most are set more than once, and reading is cheaper.
        if let Some(word) = self.0.get(row / 64).filter(|word| word.load(Relaxed) & bit == 0) {
            word.fetch_or(bit, Relaxed);
        }
    }

    pub(super) fn get(&self, row: usize) -> bool {
        self.0.get(row / 64).is_some_and(|word| word.load(Relaxed) >> (row % 64) & 1 == 1)
    }
}
