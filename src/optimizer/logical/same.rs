//! A value as it is, which DataFusion does not look into.

use std::sync::LazyLock;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// The value of an expression, hidden from rules that would conclude from it what is wrong.
pub(super) fn same(expr: Expr) -> Expr {
    SAME.call(vec![expr])
}

/// Whether an expression is hidden.
pub(super) fn is_same(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().is::<Same>())
}

static SAME: LazyLock<ScalarUDF> =
    LazyLock::new(|| ScalarUDF::from(Same { signature: Signature::any(1, Volatility::Immutable) }));

/// A value as it is.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Same {
    signature: Signature,
}

impl ScalarUDFImpl for Same {
    fn name(&self) -> &str {
        "same"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(FieldRef::clone(&arguments.arg_fields[0]))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let value = arguments.args.swap_remove(0);
        // One value for no rows would be taken for one that all rows have.
        match arguments.number_rows {
            0 => Ok(ColumnarValue::Array(value.into_array(0)?)),
            _ => Ok(value),
        }
    }
}
