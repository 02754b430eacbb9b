//! Conditions on the columns that paths give: files of which they are not true are not opened.

use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::PhysicalExpr;

/// Whether an expression is of nothing but such columns. A constant is: conditions that were taken over are simplified
/// afterwards, and nobody else asks what became of them.
pub(super) fn is_of_paths(filter: &Expr, columns: &[FieldRef]) -> bool {
    let names = filter.column_refs();
    let is_of_path = |name: &str| columns.iter().any(|column| column.name() == name);
    let is_constant = matches!(filter, Expr::Literal(..));
    !filter.is_volatile() && (is_constant || !names.is_empty()) && names.iter().all(|column| is_of_path(&column.name))
}

/// The files of which all filters are true, one filter after the other: what a later one says of a file is not asked
/// where it is out already. Their partition values are the `columns`.
pub(super) fn with_true_paths(
    session: &dyn Session,
    files: Vec<PartitionedFile>,
    columns: &Fields,
    filters: &[Expr],
) -> Result<Vec<PartitionedFile>> {
    let schema = Arc::new(Schema::new(columns.clone()));
    let of_paths = DFSchema::try_from(schema.as_ref().clone())?;
    filters.iter().try_fold(files, |files, filter| {
        let filter = session.create_physical_expr(filter.clone(), &of_paths)?;
        match true_paths(filter.as_ref(), &files, &schema) {
            Ok(kept) => Ok(files.into_iter().zip(kept).filter_map(|(file, kept)| kept.then_some(file)).collect()),
            // One by one, it may not come to the part that fails.
            Err(_) => {
                let kept = |file: PartitionedFile| {
                    let kept = true_paths(filter.as_ref(), std::slice::from_ref(&file), &schema);
                    kept.map(|kept| kept[0].then_some(file)).transpose()
                };
                files.into_iter().filter_map(kept).collect()
            }
        }
    })
}

/// Of which of the files a filter is true.
fn true_paths(filter: &dyn PhysicalExpr, files: &[PartitionedFile], columns: &SchemaRef) -> Result<Vec<bool>> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let values_of = |place: usize| ScalarValue::iter_to_array(files.iter().map(|f| f.partition_values[place].clone()));
    let values = (0..columns.fields().len()).map(values_of).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
    let values = RecordBatch::try_new_with_options(Arc::clone(columns), values, &options)?;
    // NULL has a type of its own.
    let is_true = cast(&filter.evaluate(&values)?.into_array(files.len())?, &DataType::Boolean)?;
    let is_true = as_boolean_array(&is_true)?;
    Ok((0..files.len()).map(|place| is_true.is_valid(place) && is_true.value(place)).collect())
}
