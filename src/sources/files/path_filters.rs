//! Conditions on the columns that paths give: files of which they are not true are not opened.

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{FieldRef, Fields, Schema};
use datafusion::catalog::Session;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::conjunction;

/// Whether an expression is of nothing but such columns.
pub(super) fn is_of_paths(filter: &Expr, columns: &[FieldRef]) -> bool {
    let names = filter.column_refs();
    let is_of_path = |name: &str| columns.iter().any(|column| column.name() == name);
    !filter.is_volatile() && !names.is_empty() && names.iter().all(|column| is_of_path(&column.name))
}

/// The files of which all filters are true. Their partition values are the `columns`.
pub(super) fn with_true_paths(
    session: &dyn Session,
    files: Vec<PartitionedFile>,
    columns: &Fields,
    filters: &[Expr],
) -> Result<Vec<PartitionedFile>> {
    let Some(filter) = conjunction(filters.iter().cloned()).filter(|_| !files.is_empty()) else {
        return Ok(files);
    };
    let schema = Schema::new(columns.clone());
    let filter = session.create_physical_expr(filter, &DFSchema::try_from(schema.clone())?)?;
    let values_of = |place: usize| ScalarValue::iter_to_array(files.iter().map(|f| f.partition_values[place].clone()));
    let values = (0..columns.len()).map(values_of).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
    let values = RecordBatch::try_new_with_options(schema.into(), values, &options)?;
    let is_true = filter.evaluate(&values)?.into_array(files.len())?;
    let is_true = as_boolean_array(&is_true)?;
    let kept = files.into_iter().enumerate().filter(|(place, _)| is_true.is_valid(*place) && is_true.value(*place));
    Ok(kept.map(|(_, file)| file).collect())
}
