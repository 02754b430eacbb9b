//! Rows for training and testing, the same part of those with each value of a column: Ray's `train_test_split(..,
//! stratify)`. The last rows of each value are for testing.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, col, not};

use super::map_groups;
use crate::error::unknown_name;
use crate::functions::{MapOptions, from_closure};

/// The column that says which rows are for testing.
const IS_TEST: &str = "__is_test";

/// The rows by the values of a column, of which so much is marked for testing, rounded down.
pub(crate) fn mark_test_rows(input: LogicalPlan, column: &str, test_size: f64) -> Result<LogicalPlan> {
    let names: Vec<&str> = input.schema().fields().iter().map(|field| field.name().as_str()).collect();
    if !names.contains(&column) {
        return Err(unknown_name("column", column, "stratify", &names));
    }
    let mark = move |group: RecordBatch| {
        let rows = group.num_rows();
        let test = (rows as f64 * test_size) as usize;
        let is_test: BooleanArray = (0..rows).map(|row| Some(row >= rows - test)).collect();
        let field = Arc::new(Field::new(IS_TEST, DataType::Boolean, false));
        let fields: Vec<_> = group.schema().fields().iter().cloned().chain([field]).collect();
        let columns = group.columns().iter().cloned().chain([Arc::new(is_test) as ArrayRef]).collect();
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
    };
    let options = MapOptions { name: Some("stratify".to_owned()), ..MapOptions::default() };
    map_groups(input, vec![column.to_owned()], from_closure(mark), &options)
}

/// Those of marked rows that are for testing, or the others, without the mark.
pub(crate) fn test_rows(marked: LogicalPlan, are_for_test: bool) -> Result<LogicalPlan> {
    let columns = marked.schema().iter().filter(|(_, field)| field.name() != IS_TEST);
    let columns: Vec<Expr> = columns.map(|column| Expr::Column(Column::from(column))).collect();
    let wanted = if are_for_test { col(IS_TEST) } else { not(col(IS_TEST)) };
    LogicalPlanBuilder::from(marked).filter(wanted)?.project(columns)?.build()
}
