//! Numbers that have no room in their type.

use datafusion::arrow::array::{Array, AsArray, new_empty_array};
use datafusion::arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// The error of a number that is called so and has no room in its type.
pub(crate) fn exceeds(name: &str, kind: &DataType) -> DataFusionError {
    let wider = match kind {
        DataType::Int64 | DataType::UInt64 => "DECIMAL(38, 0) or DOUBLE",
        kind if kind.is_integer() => "BIGINT",
        _ => "DOUBLE",
    };
    exec_datafusion_err!("{name} exceeds {kind}: cast what it is computed of to {wider}")
}

/// Whether decimals have no more digits than their type; numbers of other types do.
pub(crate) fn fits_digits(numbers: &dyn Array) -> bool {
    match numbers.data_type() {
        DataType::Decimal32(digits, _) => numbers.as_primitive::<Decimal32Type>().validate_decimal_precision(*digits),
        DataType::Decimal64(digits, _) => numbers.as_primitive::<Decimal64Type>().validate_decimal_precision(*digits),
        DataType::Decimal128(digits, _) => numbers.as_primitive::<Decimal128Type>().validate_decimal_precision(*digits),
        DataType::Decimal256(digits, _) => numbers.as_primitive::<Decimal256Type>().validate_decimal_precision(*digits),
        _ => Ok(()),
    }
    .is_ok()
}

/// In place of a constant that is written so and has no room in its type: it fails where it is evaluated.
pub(crate) fn exceeding(written: String, kind: DataType) -> Expr {
    let signature = Signature::nullary(Volatility::Immutable);
    ScalarUDF::new_from_impl(Exceeding { written, kind, signature }).call(Vec::new())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Exceeding {
    written: String,
    kind: DataType,
    signature: Signature,
}

impl ScalarUDFImpl for Exceeding {
    fn name(&self) -> &str {
        "exceeding"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.kind.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.number_rows {
            0 => Ok(ColumnarValue::Array(new_empty_array(&self.kind))),
            _ => Err(exceeds(&self.written, &self.kind)),
        }
    }
}
