//! Intervals as numbers: how long they are, and so many times as long.
//!
//! DataFusion compares intervals by their months, then days, then nanoseconds, so that 25 hours are less than a day;
//! and it has no product of an interval and a number. Here a month has 30 days and a day 24 hours where they are
//! compared.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, IntervalMonthDayNanoArray, PrimitiveArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, DurationNanosecondType, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    IntervalUnit, TimeUnit,
};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::point_of_time::NANOS_OF_DAY;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);
/// Nanoseconds of a day, and days of a month.
const DAY: i128 = NANOS_OF_DAY as i128;
const DAYS_OF_MONTH: i128 = 30;

/// How many nanoseconds an interval has.
pub(crate) fn interval_length(interval: Expr) -> Expr {
    ScalarUDF::new_from_impl(IntervalFunction::of(Operation::Length)).call(vec![interval])
}

/// An interval so many times.
pub(crate) fn interval_times(interval: Expr, number: Expr) -> Expr {
    ScalarUDF::new_from_impl(IntervalFunction::of(Operation::Times)).call(vec![interval, number])
}

/// An interval in so many parts.
pub(crate) fn interval_over(interval: Expr, number: Expr) -> Expr {
    ScalarUDF::new_from_impl(IntervalFunction::of(Operation::Over)).call(vec![interval, number])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Length,
    Times,
    Over,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct IntervalFunction {
    operation: Operation,
    signature: Signature,
}

impl IntervalFunction {
    fn of(operation: Operation) -> Self {
        Self { operation, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for IntervalFunction {
    fn name(&self) -> &str {
        match self.operation {
            Operation::Length => "interval_length",
            Operation::Times => "interval_times",
            Operation::Over => "interval_over",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let interval = |given: &DataType| match given {
            DataType::Duration(_) => Ok(DataType::Duration(TimeUnit::Nanosecond)),
            DataType::Interval(_) | DataType::Null => Ok(INTERVAL),
            other => plan_err!("{} takes an interval, got {other}", self.name()),
        };
        let number = |given: &DataType| if given.is_integer() { DataType::Int64 } else { DataType::Float64 };
        match given {
            [one] => Ok(vec![interval(one)?]),
            [one, times] if times.is_numeric() || times.is_null() => Ok(vec![interval(one)?, number(times)]),
            _ => plan_err!("{} takes an interval and a number", self.name()),
        }
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match self.operation {
            Operation::Length => Ok(DataType::Decimal128(38, 0)),
            Operation::Times | Operation::Over => Ok(given[0].clone()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kind = args.return_type().clone();
        let is_constant = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let values = args.args.iter().map(|value| value.to_array(rows)).collect::<Result<Vec<_>>>()?;
        let intervals = cast(&values[0], &INTERVAL)?;
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        let found: ArrayRef = match (self.operation, values.get(1)) {
            (Operation::Length, _) => {
                let lengths: Decimal128Array = intervals.iter().map(|of| of.map(length)).collect();
                Arc::new(lengths.with_precision_and_scale(38, 0)?)
            }
            (operation, Some(numbers)) => scaled(intervals, numbers, operation == Operation::Over)?,
            (_, None) => return plan_err!("{} takes an interval and a number", self.name()),
        };
        // What was made of a duration has neither months nor days.
        let found = match kind {
            DataType::Duration(_) => durations(&found),
            _ => found,
        };
        match is_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&found, 0)?)),
            false => Ok(ColumnarValue::Array(found)),
        }
    }
}

fn length(of: IntervalMonthDayNano) -> i128 {
    let days = i128::from(of.months) * DAYS_OF_MONTH + i128::from(of.days);
    days * DAY + i128::from(of.nanoseconds)
}

fn durations(intervals: &ArrayRef) -> ArrayRef {
    let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
    let nanos = |of: IntervalMonthDayNano| i64::try_from(length(of)).unwrap_or(of.nanoseconds);
    let nanos: PrimitiveArray<DurationNanosecondType> = intervals.unary(nanos);
    Arc::new(nanos)
}

/// Intervals times numbers, or over them.
fn scaled(intervals: &IntervalMonthDayNanoArray, numbers: &ArrayRef, over: bool) -> Result<ArrayRef> {
    let of_row = |row: usize| {
        if intervals.is_null(row) || numbers.is_null(row) {
            return Ok(None);
        }
        let of = intervals.value(row);
        let scaled = match numbers.data_type() {
            DataType::Int64 => {
                let number = i128::from(numbers.as_primitive::<Int64Type>().value(row));
                if over && number == 0 {
                    return exec_err!("an interval divided by zero");
                }
                if over { divided(of, number) } else { multiplied(of, number) }
            }
            _ => {
                let number = numbers.as_primitive::<Float64Type>().value(row);
                stretched(of, if over { 1.0 / number } else { number })
            }
        };
        let scaled = scaled.ok_or_else(|| exec_datafusion_err!("an interval out of range: {of:?} scaled"))?;
        Ok(Some(scaled))
    };
    let scaled = (0..intervals.len()).map(of_row).collect::<Result<IntervalMonthDayNanoArray>>()?;
    Ok(Arc::new(scaled))
}

fn interval(months: i128, days: i128, nanos: i128) -> Option<IntervalMonthDayNano> {
    Some(IntervalMonthDayNano {
        months: months.try_into().ok()?,
        days: days.try_into().ok()?,
        nanoseconds: nanos.try_into().ok()?,
    })
}

fn multiplied(of: IntervalMonthDayNano, by: i128) -> Option<IntervalMonthDayNano> {
    interval(i128::from(of.months) * by, i128::from(of.days) * by, i128::from(of.nanoseconds) * by)
}

/// What is left of months becomes days, and what is left of days hours.
fn divided(of: IntervalMonthDayNano, by: i128) -> Option<IntervalMonthDayNano> {
    let months = i128::from(of.months);
    let days = i128::from(of.days) + months.checked_rem(by)? * DAYS_OF_MONTH;
    let nanos = i128::from(of.nanoseconds) + days % by * DAY;
    interval(months / by, days / by, nanos / by)
}

fn stretched(of: IntervalMonthDayNano, by: f64) -> Option<IntervalMonthDayNano> {
    let months = f64::from(of.months) * by;
    let days = f64::from(of.days) * by + months.fract() * DAYS_OF_MONTH as f64;
    let nanos = (of.nanoseconds as f64 * by + days.fract() * DAY as f64).round();
    let whole = |number: f64| number.is_finite().then_some(number.trunc() as i128);
    interval(whole(months)?, whole(days)?, whole(nanos)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(months: i32, days: i32, nanoseconds: i64) -> IntervalMonthDayNano {
        IntervalMonthDayNano { months, days, nanoseconds }
    }

    #[test]
    fn a_day_has_24_hours_and_a_month_30_days() {
        assert!(length(of(0, 0, 25 * 3_600_000_000_000)) > length(of(0, 1, 0)));
        assert_eq!(length(of(1, 0, 0)), length(of(0, 30, 0)));
    }

    #[test]
    fn what_is_left_of_months_and_days_goes_on() {
        let day = NANOS_OF_DAY;
        assert_eq!(multiplied(of(1, -2, 3), 4), Some(of(4, -8, 12)));
        assert_eq!(divided(of(3, 1, 0), 2), Some(of(1, 15, day / 2)));
        assert_eq!(divided(of(0, 1, 0), 3), Some(of(0, 0, day / 3)));
        assert_eq!(divided(of(0, 1, 0), 0), None);
        assert_eq!(stretched(of(1, 1, 0), 0.5), Some(of(0, 15, day / 2)));
        assert_eq!(stretched(of(1, 0, 0), f64::NAN), None);
        assert_eq!(multiplied(of(i32::MAX, 0, 0), 2), None);
    }
}
