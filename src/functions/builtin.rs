//! Functions that are there without registering any, to try things from SQL alone.

use std::hash::BuildHasher;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, RecordBatch, RecordBatchOptions, UInt64Array,
};
use datafusion::arrow::compute::{cast, filter_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, Float64Type, Schema};
use datafusion::common::hash_utils::create_hashes;
use datafusion::common::{Result, plan_err};

use super::FunctionRef;
use super::batch_function::Closure;

/// One function each; the names are those that SQL uses.
pub(super) fn all() -> Vec<FunctionRef> {
    vec![
        function("identity", true, Ok),
        function("drop_nulls", false, drop_nulls),
        function("row_hash", true, row_hash),
        function("l2_normalize", true, l2_normalize),
    ]
}

fn function(
    name: &str,
    preserves_row_count: bool,
    f: impl Fn(RecordBatch) -> Result<RecordBatch> + Send + Sync + 'static,
) -> FunctionRef {
    FunctionRef::new(Closure { name: name.to_owned(), f, preserves_row_count, schema: None })
}

/// Keeps the rows in which no column is null.
fn drop_nulls(batch: RecordBatch) -> Result<RecordBatch> {
    // Logical ones: columns of nulls only and dictionaries have no buffer for them.
    let nulls: Vec<_> = batch.columns().iter().filter_map(|column| column.logical_nulls()).collect();
    let complete = |row| nulls.iter().all(|nulls| nulls.is_valid(row));
    let keep: BooleanArray = (0..batch.num_rows()).map(|row| Some(complete(row))).collect();
    Ok(filter_record_batch(&batch, &keep)?)
}

/// Appends a `row_hash` column (UInt64) which depends on the values of the row only.
fn row_hash(batch: RecordBatch) -> Result<RecordBatch> {
    let mut hashes = vec![0; batch.num_rows()];
    let state = datafusion::common::hash_utils::RandomState::with_seed(0);
    create_hashes(batch.columns(), &state, &mut hashes)?;
    // It passes over nulls, whose column would not tell.
    for (place, column) in batch.columns().iter().enumerate() {
        let Some(nulls) = column.logical_nulls() else { continue };
        let null_rows = hashes.iter_mut().zip(nulls.iter()).filter(|(_, is_valid)| !is_valid);
        null_rows.for_each(|(hash, _)| *hash = state.hash_one((*hash, place)));
    }
    append(&batch, Field::new("row_hash", DataType::UInt64, false), Arc::new(UInt64Array::from(hashes)))
}

/// Divides the floating-point columns of each row by the row's Euclidean length over them. Nulls stay null and count as
/// zero; a row of zeros stays as it is.
fn l2_normalize(batch: RecordBatch) -> Result<RecordBatch> {
    let floats: Vec<usize> = (0..batch.num_columns()).filter(|i| batch.column(*i).data_type().is_floating()).collect();
    if floats.is_empty() {
        return plan_err!("l2_normalize needs at least one floating-point column");
    }
    let columns: Vec<Float64Array> = floats
        .iter()
        .map(|i| Ok(cast(batch.column(*i), &DataType::Float64)?.as_primitive::<Float64Type>().clone()))
        .collect::<Result<_>>()?;
    // Squares of very large and very small numbers are infinite, and 0.
    let of_row = |row: usize| columns.iter().filter(move |c| c.is_valid(row)).map(move |c| c.value(row));
    let lengths: Vec<f64> = (0..batch.num_rows())
        .map(|row| of_row(row).fold(0.0_f64, f64::hypot))
        .map(|length| if length == 0.0 { 1.0 } else { length })
        .collect();
    let mut out = batch.columns().to_vec();
    for (i, column) in floats.iter().zip(&columns) {
        let scaled: Float64Array = column.iter().zip(&lengths).map(|(v, l)| v.map(|v| v / l)).collect();
        out[*i] = cast(&scaled, batch.column(*i).data_type())?;
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), out, &options)?)
}

fn append(batch: &RecordBatch, field: Field, column: ArrayRef) -> Result<RecordBatch> {
    let fields: Vec<_> = batch.schema().fields().iter().cloned().chain([Arc::new(field)]).collect();
    let columns = batch.columns().iter().cloned().chain([column]).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::UInt64Type;

    use super::*;
    use arrow::array::record_batch;
    use datafusion::common::assert_batches_eq;

    #[test]
    fn null_rows_leave_and_lengths_become_one() {
        let batch = record_batch!(("a", Float64, [Some(3.0), None]), ("b", Float64, [4.0, 2.0])).unwrap();
        let out = l2_normalize(batch.clone()).unwrap();
        assert_batches_eq!(
            ["+-----+-----+", "| a   | b   |", "+-----+-----+", "| 0.6 | 0.8 |", "|     | 1.0 |", "+-----+-----+"],
            &[out]
        );
        assert_eq!(drop_nulls(batch.clone()).unwrap().num_rows(), 1);
        let column = datafusion::arrow::array::new_null_array(&DataType::Null, 2);
        let nothing = RecordBatch::try_from_iter([("n", column)]).unwrap();
        assert_eq!(drop_nulls(nothing).unwrap().num_rows(), 0);
        assert_eq!(row_hash(batch).unwrap().num_columns(), 3);
        let some = |values: [Option<i64>; 3]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let nulls = [("a", some([Some(1), None, None])), ("b", some([None, Some(1), None]))];
        let hashed = row_hash(RecordBatch::try_from_iter(nulls).unwrap()).unwrap();
        let mut hashes = hashed.column(2).as_primitive::<UInt64Type>().values().to_vec();
        hashes.dedup();
        assert_eq!(hashes.len(), 3, "nulls count");
    }
}
