//! A field of a row.

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;

/// A field of a row, by its number. DataFusion moves `get_field` down to scans, and with it the subquery that gives the
/// row: under names that may be there already, and once for each field.
pub(super) fn field_of(row: Expr, number: usize) -> Expr {
    let signature = Signature::any(1, Volatility::Immutable);
    ScalarUDF::from(FieldOf { number, name: format!("field_{number}"), signature }).call(vec![row])
}

/// The field of this number.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FieldOf {
    number: usize,
    name: String,
    signature: Signature,
}

impl FieldOf {
    fn field<'a>(&self, row: &'a DataType) -> Result<&'a FieldRef> {
        match row {
            DataType::Struct(fields) if self.number < fields.len() => Ok(&fields[self.number]),
            other => internal_err!("{other} has no field {}", self.number),
        }
    }
}

impl ScalarUDFImpl for FieldOf {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(self.field(&arguments[0])?.data_type().clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let field = self.field(arguments.arg_fields[0].data_type())?;
        Ok(Arc::new(Field::new(self.name(), field.data_type().clone(), true)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let value = match &arguments.args[0] {
            ColumnarValue::Array(rows) => ColumnarValue::Array(Arc::clone(rows.as_struct().column(self.number))),
            ColumnarValue::Scalar(ScalarValue::Struct(row)) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(row.column(self.number), 0)?)
            }
            ColumnarValue::Scalar(row) => {
                ColumnarValue::Scalar(ScalarValue::try_from(self.field(&row.data_type())?.data_type())?)
            }
        };
        Ok(value)
    }
}
