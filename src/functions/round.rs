//! `round` to a number of digits that is there from the beginning.
//!
//! The type of a rounded decimal depends on its second argument where that is a literal. DataFusion casts the literal
//! first, so that the types of joins, comparisons and `CASE` are those of a number that is not known yet, and when the
//! cast has become a literal rows are compared with others of another scale: none match. This one takes integers of all
//! types as they are.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

pub(super) const NAME: &str = "round";

/// Of DataFusion's, which takes digits as 32 bits, that of digits of any type.
pub(super) fn with_digits_as_they_are(of_digits: Arc<ScalarUDF>) -> ScalarUDF {
    Round { of_digits, signature: Signature::user_defined(Volatility::Immutable) }.into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Round {
    /// DataFusion's, which takes digits as 32 bits.
    of_digits: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for Round {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let (value, digits) = match given {
            [value] => (value, None),
            [value, digits] => (value, Some(digits)),
            _ => return plan_err!("{NAME} takes a number, and to how many digits, got {} arguments", given.len()),
        };
        let value = match value {
            kind if kind.is_decimal() || kind.is_integer() || *kind == DataType::Float32 => value.clone(),
            DataType::Null | DataType::Float16 | DataType::Float64 => DataType::Float64,
            other => return plan_err!("{NAME} takes a number, got one of type {other}"),
        };
        let digits = match digits {
            Some(DataType::Null) => Some(DataType::Int32),
            Some(kind) if kind.is_integer() => Some(kind.clone()),
            Some(other) => return plan_err!("{NAME} takes a number of digits as an integer, got one of type {other}"),
            None => None,
        };
        Ok([Some(value), digits].into_iter().flatten().collect())
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        self.of_digits.return_type(given)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.of_digits.return_field_from_args(args)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(digits) = args.args.get_mut(1) {
            *digits = digits.cast_to(&DataType::Int32, None)?;
            args.arg_fields[1] = Arc::new(Field::new(NAME, DataType::Int32, args.arg_fields[1].is_nullable()));
        }
        self.of_digits.invoke_with_args(args)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.of_digits.output_ordering(inputs)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_digits.documentation()
    }
}
