//! How many rows a batch may have that is given.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::datatypes::DataType;

use crate::block::sliced_bytes;

/// A batch whose rows are as wide as the widest may be larger than others by this factor.
const WIDEST: usize = 8;

/// Sizes of the rows of the left side, and of batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    max_rows: usize,
    max_bytes: usize,
    left: Row,
}

/// Bytes of a row: of all on average, and of the widest.
#[derive(Debug, Clone, Copy)]
struct Row {
    average: usize,
    widest: usize,
}

impl Sizes {
    pub(super) fn new(left: &RecordBatch, max_rows: usize, max_bytes: usize) -> Self {
        Self { max_rows: max_rows.max(1), max_bytes, left: Row::of(left) }
    }

    /// Rows that a batch has at most.
    pub(super) fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Rows of a batch that joins rows of the left side with these.
    pub(super) fn rows_with(&self, right: &RecordBatch) -> usize {
        let right = Row::of(right);
        self.rows(Row { average: self.left.average + right.average, widest: self.left.widest + right.widest })
    }

    /// Rows of a batch of the left side.
    pub(super) fn rows_of_left(&self) -> usize {
        self.rows(self.left)
    }

    fn rows(&self, row: Row) -> usize {
        let by_average = self.max_bytes / row.average.max(1);
        let by_widest = self.max_bytes.saturating_mul(WIDEST) / row.widest.max(1);
        by_average.min(by_widest).clamp(1, self.max_rows)
    }
}

impl Row {
    fn of(rows: &RecordBatch) -> Self {
        let average = sliced_bytes(rows) / rows.num_rows().max(1);
        let widest = rows.columns().iter().map(longest).sum::<usize>().max(average);
        Self { average, widest }
    }
}

/// Bytes of the longest value, where values are texts or bytes.
fn longest(values: &ArrayRef) -> usize {
    fn longest(ends: impl Iterator<Item = usize> + Clone) -> usize {
        ends.clone().skip(1).zip(ends).map(|(end, start)| end - start).max().unwrap_or(0)
    }
    match values.data_type() {
        DataType::Utf8 => longest(values.as_string::<i32>().offsets().iter().map(|end| *end as usize)),
        DataType::LargeUtf8 => longest(values.as_string::<i64>().offsets().iter().map(|end| *end as usize)),
        DataType::Binary => longest(values.as_binary::<i32>().offsets().iter().map(|end| *end as usize)),
        DataType::LargeBinary => longest(values.as_binary::<i64>().offsets().iter().map(|end| *end as usize)),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::StringArray;

    use super::*;

    fn texts(lengths: &[usize]) -> RecordBatch {
        let texts = StringArray::from_iter_values(lengths.iter().map(|length| "x".repeat(*length)));
        RecordBatch::try_from_iter([("t", Arc::new(texts) as _)]).unwrap()
    }

    #[test]
    fn batches_have_fewer_rows_where_rows_are_wide() {
        let sizes = Sizes::new(&texts(&[1; 100]), 8192, 1 << 20);
        assert_eq!(sizes.rows_with(&texts(&[1; 100])), 8192);
        assert!((90..=110).contains(&sizes.rows_with(&texts(&[10_000; 100]))));
        // One of many is wide.
        let mut lengths = [10; 10_000];
        lengths[7] = 1 << 20;
        assert!((1..=8).contains(&sizes.rows_with(&texts(&lengths))));
        assert_eq!(sizes.rows_with(&texts(&[])), 8192);
    }
}
