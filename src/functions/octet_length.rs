//! `octet_length` of binary values too, for which DataFusion has it of texts only.

use std::sync::Arc;

use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

pub(super) const NAME: &str = "octet_length";

/// Of DataFusion's, which is of texts, that of both.
pub(super) fn of_both(of_text: Arc<ScalarUDF>) -> ScalarUDF {
    OctetLength { of_text, signature: Signature::user_defined(Volatility::Immutable) }.into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OctetLength {
    of_text: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for OctetLength {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let [given] = given else {
            return plan_err!("{NAME} takes one value, got {}", given.len());
        };
        let is_text = |of: &DataType| matches!(of, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        match given {
            DataType::Null => Ok(vec![DataType::Utf8]),
            DataType::Dictionary(_, of) if is_text(of) => Ok(vec![given.clone()]),
            DataType::FixedSizeBinary(_) => Ok(vec![DataType::Binary]),
            text if is_text(text) => Ok(vec![given.clone()]),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(vec![given.clone()]),
            other => plan_err!("{NAME} takes a text or a binary value, got one of type {other}"),
        }
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [DataType::LargeBinary] => Ok(DataType::Int64),
            [DataType::Binary | DataType::BinaryView] => Ok(DataType::Int32),
            given => self.of_text.return_type(given),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [ColumnarValue::Array(values)] => Ok(ColumnarValue::Array(length(values.as_ref())?)),
            [ColumnarValue::Scalar(value)] => {
                let length = length(value.to_array()?.as_ref())?;
                Ok(ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&length, 0)?))
            }
            _ => self.of_text.invoke_with_args(args),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_text.documentation()
    }
}
