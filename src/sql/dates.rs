//! A date and an interval that is not made of whole days are a point of time.
//!
//! DataFusion gives a date for every sum of a date and an interval, and drops the hours: `date '2024-01-01' + interval
//! '25 hours'` was the second of January. Here it is one o'clock. Months and days make a date of a date, as ever.
//!
//! An interval times a number, or over one, is an interval, which DataFusion does not know.

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use crate::functions::{NANOS_OF_DAY, interval_over, interval_times};

/// Makes dates points of time where the sum is one.
#[derive(Debug)]
pub(crate) struct DateArithmetic;

impl ExprPlanner for DateArithmetic {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, left, right } = expr;
        let is_date = |expr: &Expr| matches!(expr.get_type(schema), Ok(DataType::Date32 | DataType::Date64));
        let (left, right) = match op {
            BinaryOperator::Plus | BinaryOperator::Minus if may_have_hours(&right, schema) && is_date(&left) => {
                (point_of_time(left), right)
            }
            BinaryOperator::Plus if may_have_hours(&left, schema) && is_date(&right) => (left, point_of_time(right)),
            BinaryOperator::Multiply if is_interval(&left, schema) && is_number(&right, schema) => {
                return Ok(PlannerResult::Planned(interval_times(left, right)));
            }
            BinaryOperator::Multiply if is_number(&left, schema) && is_interval(&right, schema) => {
                return Ok(PlannerResult::Planned(interval_times(right, left)));
            }
            BinaryOperator::Divide if is_interval(&left, schema) && is_number(&right, schema) => {
                return Ok(PlannerResult::Planned(interval_over(left, right)));
            }
            _ => (left, right),
        };
        Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }))
    }
}

fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Interval(_) | DataType::Duration(_)))
}

fn is_number(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|kind| kind.is_numeric())
}

fn point_of_time(date: Expr) -> Expr {
    cast(date, DataType::Timestamp(TimeUnit::Nanosecond, None))
}

/// Whether an expression is an interval that is not known to be made of whole days.
fn may_have_hours(expr: &Expr, schema: &DFSchema) -> bool {
    match expr {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), _) => interval.nanoseconds % NANOS_OF_DAY != 0,
        Expr::Literal(ScalarValue::IntervalDayTime(Some(interval)), _) => interval.milliseconds != 0,
        Expr::Literal(ScalarValue::IntervalYearMonth(_), _) => false,
        other => matches!(other.get_type(schema), Ok(DataType::Interval(_))),
    }
}
