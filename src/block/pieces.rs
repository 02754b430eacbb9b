//! Batches in parts.

use datafusion::arrow::array::RecordBatch;

/// The batch in pieces of at most so many rows, without copying them; one without rows is in none.
pub(crate) fn pieces(batch: RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> {
    let (total, rows) = (batch.num_rows(), rows.max(1));
    let starts = (0..total).step_by(rows);
    starts.map(move |start| batch.slice(start, rows.min(total - start)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array};

    use super::*;

    #[test]
    fn pieces_have_all_rows_and_no_more_than_asked() {
        let numbers = Arc::new(Int64Array::from_iter_values(0..10)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let rows = |batch, most| pieces(batch, most).map(|part| part.num_rows()).collect::<Vec<_>>();
        assert_eq!(rows(batch.clone(), 4), [4, 4, 2]);
        assert_eq!(rows(batch.clone(), 10), [10]);
        assert_eq!(rows(batch.slice(0, 3), 0), [1, 1, 1]);
        assert!(rows(batch.slice(0, 0), 4).is_empty());
    }
}
