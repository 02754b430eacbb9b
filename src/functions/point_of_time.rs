//! `point_of_time(date)`: its first nanosecond, or the last one that there is for a date like 9999-12-31.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, TimestampNanosecondArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Date32Type, TimeUnit};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

pub(crate) const NANOS_OF_DAY: i64 = 86_400_000_000_000;

/// The first nanosecond of a date in a time zone whose days are those of UTC.
pub(crate) fn point_of_time(date: Expr, zone: Option<Arc<str>>) -> Expr {
    let signature = Signature::exact(vec![DataType::Date32], Volatility::Immutable);
    ScalarUDF::new_from_impl(PointOfTime { zone, signature }).call(vec![date])
}

/// The nanosecond with which a day begins, or the one next to it that there is.
pub(crate) fn begin_of_day(day: i32) -> i64 {
    i64::from(day).saturating_mul(NANOS_OF_DAY)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PointOfTime {
    zone: Option<Arc<str>>,
    signature: Signature,
}

impl ScalarUDFImpl for PointOfTime {
    fn name(&self) -> &str {
        "point_of_time"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _given: &[DataType]) -> Result<DataType> {
        Ok(DataType::Timestamp(TimeUnit::Nanosecond, self.zone.clone()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = matches!(args.args.as_slice(), [ColumnarValue::Scalar(_)]);
        let days = args.args[0].to_array(if is_constant { 1 } else { args.number_rows })?;
        let days = cast(&days, &DataType::Date32)?;
        let begins: TimestampNanosecondArray = days.as_primitive::<Date32Type>().unary(begin_of_day);
        let begins = begins.with_timezone_opt(self.zone.clone());
        match is_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&begins, 0)?)),
            false => Ok(ColumnarValue::Array(Arc::new(begins))),
        }
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        Ok(inputs[0].sort_properties)
    }
}
