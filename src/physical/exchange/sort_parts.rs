//! Rows dealt out by ranges of their keys, so that each part is copied and sorted in the cache.
//!
//! ```text
//! batches      5 1 9 | 3 8 1 | 7 2 4
//! by part      1 5 9 | 3 1 8 | 2 4 7      parts until 3, until 6, and behind
//! part 0       1     | 3 1   | 2          one piece of each batch, sorted when it is its turn
//! ```

use std::ops::Range;

use datafusion::arrow::array::UInt32Array;
use datafusion::arrow::row::Rows;

use super::sort_keys::{DifferingBytes, all, sort_numbered};

/// A part should have so many rows. There are no more parts than this, and their bounds are drawn from so many rows of
/// each.
const PART_ROWS: usize = 1 << 15;
const MAX_PARTS: usize = 1 << 10;
const DRAWN_OF_PART: usize = 16;

/// Deals out the rows of batches.
pub(crate) trait Dealer: Send {
    /// The rows of the next batch, part by part.
    fn next_batch(&mut self) -> Option<UInt32Array>;

    /// The parts in order, when all batches have been dealt out.
    fn parts(self: Box<Self>) -> Box<dyn Iterator<Item = Part> + Send>;
}

/// Rows whose keys are in some range.
pub(crate) struct Part {
    /// Where they are in each batch, when its rows are part by part.
    pub(crate) rows: Vec<Range<usize>>,
    /// These in order, counted on from batch to batch. Equal ones are in the order of the batches.
    pub(crate) order: UInt32Array,
}

/// Deals out the rows of batches that have these keys.
pub(crate) fn dealer(keys: Vec<Rows>) -> Box<dyn Dealer> {
    dealer_of(keys, PART_ROWS)
}

fn dealer_of(keys: Vec<Rows>, part_rows: usize) -> Box<dyn Dealer> {
    let digits = DifferingBytes::of(all(&keys).map(|(batch, row)| keys[batch].row(row)));
    match digits.positions.len() <= size_of::<u64>() {
        true => Box::new(Dealing::new(keys, digits, part_rows, |digits: u64, byte| digits << 8 | u64::from(byte))),
        false => Box::new(Dealing::new(keys, digits, part_rows, |digits: u128, byte| digits << 8 | u128::from(byte))),
    }
}

/// Rows with numbers of type `T`, which are made digit by digit.
struct Dealing<T, F> {
    keys: Vec<Rows>,
    digits: DifferingBytes,
    and: F,
    /// The first number of each part but the first.
    bounds: Vec<T>,
    /// The numbers of the rows of each part, with their batches and rows there.
    parts: Vec<Vec<(T, u32, u32)>>,
    /// Where the parts of each batch that was dealt out begin, and the last ends.
    starts: Vec<Vec<u32>>,
}

impl<T: Copy + Ord + Default, F: Fn(T, u8) -> T> Dealing<T, F> {
    fn new(keys: Vec<Rows>, digits: DifferingBytes, part_rows: usize, and: F) -> Self {
        let rows: usize = keys.iter().map(Rows::num_rows).sum();
        let num_parts = (rows / part_rows).clamp(1, MAX_PARTS);
        let drawn = all(&keys).step_by((rows / (num_parts * DRAWN_OF_PART)).max(1));
        let mut drawn: Vec<T> = drawn.map(|(batch, row)| digits.number(keys[batch].row(row), &and)).collect();
        drawn.sort_unstable();
        let mut bounds: Vec<T> = drawn.iter().skip(DRAWN_OF_PART).step_by(DRAWN_OF_PART).copied().collect();
        bounds.dedup();
        let parts = (0..=bounds.len()).map(|_| Vec::new()).collect();
        Self { keys, digits, and, bounds, parts, starts: Vec::new() }
    }
}

impl<T, F> Dealer for Dealing<T, F>
where
    T: Copy + Ord + Default + Send + 'static,
    F: Fn(T, u8) -> T + Send + 'static,
{
    fn next_batch(&mut self) -> Option<UInt32Array> {
        let batch = self.starts.len();
        let keys = self.keys.get(batch)?;
        let mut starts = vec![0_u32; self.parts.len() + 1];
        let part_of = |row: usize| {
            let number = self.digits.number(keys.row(row), &self.and);
            let part = self.bounds.partition_point(|bound| *bound <= number);
            self.parts[part].push((number, batch as u32, row as u32));
            starts[part + 1] += 1;
            part
        };
        let parts: Vec<usize> = (0..keys.num_rows()).map(part_of).collect();
        for part in 1..starts.len() {
            starts[part] += starts[part - 1];
        }
        let (mut next, mut order) = (starts.clone(), vec![0; parts.len()]);
        for (row, part) in parts.into_iter().enumerate() {
            order[next[part] as usize] = row as u32;
            next[part] += 1;
        }
        self.starts.push(starts);
        Some(order.into())
    }

    fn parts(self: Box<Self>) -> Box<dyn Iterator<Item = Part> + Send> {
        let Self { keys, digits, parts, starts, .. } = *self;
        Box::new(parts.into_iter().enumerate().map(move |(part, numbers)| {
            let key = |place: u32| {
                let (_, batch, row) = numbers[place as usize];
                keys[batch as usize].row(row as usize)
            };
            let mut order: Vec<_> = numbers.iter().zip(0_u32..).map(|((number, ..), place)| (*number, place)).collect();
            sort_numbered(&mut order, digits.tell_all, &key);
            let rows = starts.iter().map(|starts| starts[part] as usize..starts[part + 1] as usize).collect();
            Part { rows, order: order.into_iter().map(|(_, place)| place).collect::<Vec<_>>().into() }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use datafusion::arrow::compute::{concat, take};
    use datafusion::arrow::datatypes::UInt32Type;
    use datafusion::arrow::row::{RowConverter, SortField};

    use super::*;

    fn keys(column: &ArrayRef) -> Rows {
        let converter = RowConverter::new(vec![SortField::new(column.data_type().clone())]).unwrap();
        converter.convert_columns(&[Arc::clone(column)]).unwrap()
    }

    /// The numbers of the rows of `batches`, counted on from batch to batch, in the order in which they are dealt out.
    fn dealt(batches: &[ArrayRef], part_rows: usize) -> Vec<u32> {
        let mut dealer = dealer_of(batches.iter().map(keys).collect(), part_rows);
        let mut start = 0;
        let in_parts: Vec<ArrayRef> = batches
            .iter()
            .map(|batch| {
                let numbers: ArrayRef = Arc::new(UInt32Array::from_iter_values(start..start + batch.len() as u32));
                start += batch.len() as u32;
                take(&numbers, &dealer.next_batch().unwrap(), None).unwrap()
            })
            .collect();
        assert!(dealer.next_batch().is_none());
        let of_part = |part: Part| {
            let pieces: Vec<_> =
                in_parts.iter().zip(part.rows).map(|(all, rows)| all.slice(rows.start, rows.len())).collect();
            let pieces: Vec<_> = pieces.iter().map(AsRef::as_ref).collect();
            take(&concat(&pieces).unwrap(), &part.order, None).unwrap().as_primitive::<UInt32Type>().values().to_vec()
        };
        dealer.parts().flat_map(of_part).collect()
    }

    #[test]
    fn parts_are_in_order_and_equal_rows_stay() {
        let numbers = |step: i64| -> ArrayRef {
            Arc::new((0..500).map(|i| (i % 7 != 0).then_some(i * step % 100 - 50)).collect::<Int64Array>())
        };
        let texts = |from: usize| -> ArrayRef {
            Arc::new(
                (from..from + 300)
                    .map(|i| (i % 5 != 0).then(|| "x".repeat(i % 40) + &i.to_string()))
                    .collect::<StringArray>(),
            )
        };
        for batches in [vec![numbers(17), numbers(31), numbers(0)], vec![texts(0), texts(100).slice(3, 100), texts(7)]]
        {
            let all = concat(&batches.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap();
            let keys = keys(&all);
            let mut expected: Vec<u32> = (0..all.len() as u32).collect();
            expected.sort_by(|a, b| keys.row(*a as usize).cmp(&keys.row(*b as usize)));
            for part_rows in [1, 40, 400, PART_ROWS] {
                assert_eq!(dealt(&batches, part_rows), expected, "{part_rows}");
            }
        }
    }
}
