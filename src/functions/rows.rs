//! Functions over typed rows: batches are turned into Rust values and back by serde.

use std::sync::Arc;

use datafusion::arrow::array::{BooleanArray, RecordBatch};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_datafusion_err};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_arrow::schema::{SchemaLike, TracingOptions};

use super::FunctionRef;
use super::batch_function::{Closure, type_name_of};

/// Rows that can be read from columns and written to them.
pub trait Row: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Row for T {}

/// A function that turns each row into one row.
///
/// # Errors
///
/// Where serde cannot tell the columns of the result.
pub fn map_rows<T: Row, U: Row, F>(f: F) -> Result<FunctionRef>
where
    F: Fn(T) -> U + Send + Sync + 'static,
{
    let fields = fields_of::<U>()?;
    let schema = Some(Arc::new(Schema::new(fields.clone())));
    let call = move |batch| from_rows(&fields, &rows_of_batch::<T>(&batch)?.into_iter().map(&f).collect::<Vec<_>>());
    Ok(FunctionRef::new(Closure { name: type_name_of::<F>(), f: call, preserves_row_count: true, schema }))
}

/// A function that turns each row into any number of rows.
///
/// # Errors
///
/// Where serde cannot tell the columns of the result.
pub fn flat_map_rows<T: Row, U: Row, I, F>(f: F) -> Result<FunctionRef>
where
    I: IntoIterator<Item = U>,
    F: Fn(T) -> I + Send + Sync + 'static,
{
    let fields = fields_of::<U>()?;
    let schema = Some(Arc::new(Schema::new(fields.clone())));
    let call =
        move |batch| from_rows(&fields, &rows_of_batch::<T>(&batch)?.into_iter().flat_map(&f).collect::<Vec<_>>());
    Ok(FunctionRef::new(Closure { name: type_name_of::<F>(), f: call, preserves_row_count: false, schema }))
}

/// A function that keeps the rows for which `f` holds; the columns stay as they are.
pub fn filter_rows<T: Row, F>(f: F) -> FunctionRef
where
    F: Fn(&T) -> bool + Send + Sync + 'static,
{
    let call = move |batch: RecordBatch| {
        let keep: BooleanArray = rows_of_batch::<T>(&batch)?.iter().map(|row| Some(f(row))).collect();
        Ok(filter_record_batch(&batch, &keep)?)
    };
    FunctionRef::new(Closure { name: type_name_of::<F>(), f: call, preserves_row_count: false, schema: None })
}

/// Values as one batch, with the columns that their type has.
pub(crate) fn batch_of_rows<T: Row>(rows: &[T]) -> Result<RecordBatch> {
    from_rows(&fields_of::<T>()?, rows)
}

/// Columns of a type, as serde describes it.
fn fields_of<T: Row>() -> Result<Vec<FieldRef>> {
    let options = TracingOptions::default().strings_as_large_utf8(false).allow_null_fields(true);
    Vec::<FieldRef>::from_type::<T>(options).map_err(|e| {
        plan_datafusion_err!("the type {} does not give columns: {}", std::any::type_name::<T>(), e.message())
    })
}

/// The rows of a batch as values.
pub(crate) fn rows_of_batch<T: Row>(batch: &RecordBatch) -> Result<Vec<T>> {
    if batch.num_rows() == 0 {
        return Ok(Vec::new());
    }
    serde_arrow::from_record_batch(batch).map_err(|e| {
        exec_datafusion_err!("rows do not have the shape of {}: {}", std::any::type_name::<T>(), e.message())
    })
}

fn from_rows<U: Row>(fields: &[FieldRef], rows: &[U]) -> Result<RecordBatch> {
    let schema: SchemaRef = Arc::new(Schema::new(fields.to_vec()));
    if rows.is_empty() {
        return Ok(RecordBatch::new_empty(schema));
    }
    serde_arrow::to_record_batch(fields, &rows)
        .map_err(|e| DataFusionError::Execution(format!("rows cannot be turned into columns: {}", e.message())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::record_batch;
    use datafusion::common::assert_batches_eq;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize)]
    struct In {
        id: i64,
        word: Option<String>,
    }

    #[derive(Serialize, Deserialize)]
    struct Out {
        twice: i64,
        length: u64,
    }

    #[test]
    fn rows_are_typed() {
        let batch = record_batch!(("id", Int64, [1, 2]), ("word", Utf8, [Some("ab"), None])).unwrap();
        let f = map_rows(|row: In| Out { twice: row.id * 2, length: row.word.map_or(0, |w| w.len() as u64) }).unwrap();
        let out = f.call(batch.clone()).unwrap();
        assert_eq!(out.schema(), f.output_schema(&batch.schema()).unwrap());
        assert_batches_eq!(
            [
                "+-------+--------+",
                "| twice | length |",
                "+-------+--------+",
                "| 2     | 2      |",
                "| 4     | 0      |",
                "+-------+--------+"
            ],
            &[out]
        );
        let repeat = flat_map_rows(|row: In| (0..row.id).map(|i| Out { twice: i, length: 0 })).unwrap();
        assert_eq!(repeat.call(batch.clone()).unwrap().num_rows(), 3);
        assert_eq!(filter_rows(|row: &In| row.id > 1).call(batch).unwrap().num_rows(), 1);
    }

    #[test]
    fn rows_of_another_shape_are_an_error() {
        let batch = record_batch!(("other", Int64, [1])).unwrap();
        let error = filter_rows(|row: &In| row.id > 1).call(batch).unwrap_err().to_string();
        assert!(error.contains("rows do not have the shape of") && error.contains("In"), "{error}");
    }
}
