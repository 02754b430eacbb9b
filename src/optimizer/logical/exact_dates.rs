//! Compares dates with points of time, also those that are too far away for nanoseconds.
//!
//! DataFusion casts the date, which fails for the 31st of December 9999, by which people say that something has no end.
//! Here a date is compared with the day of a point of time that is written or known by then, so that files are still
//! left out by what they say of their dates, and others by a cast that ends where time does.
//!
//! ```text
//! CAST(until AS Timestamp(ns)) > TimestampNanosecond(1704110400000000000)
//!   now:     until > Date32("2024-01-01")
//! CAST(until AS Timestamp(ns)) > ts
//!   now:     point_of_time(until) > ts
//! ```

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, lit};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::exact::with_exact_casts;
use crate::functions::{NANOS_OF_DAY, begin_of_day, point_of_time};
use crate::logical::compares;

/// It comes before what is known when the query begins has become a literal, for literals of which that could not be
/// made; and after that.
#[derive(Debug)]
pub(super) struct ExactDates(pub(super) &'static str);

impl OptimizerRule for ExactDates {
    fn name(&self) -> &str {
        self.0
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        with_exact_casts(plan, compared)
    }
}

/// A date that is cast to nanoseconds.
struct CastDate {
    date: Expr,
    zone: Option<Arc<str>>,
}

impl CastDate {
    fn of(expr: &Expr, schema: &DFSchema) -> Option<Self> {
        let Expr::Cast(Cast { expr: date, field }) = expr else { return None };
        let DataType::Timestamp(TimeUnit::Nanosecond, zone) = field.data_type() else { return None };
        let is_utc = zone.as_ref().is_none_or(|zone| zone.eq_ignore_ascii_case("utc") || zone.as_ref() == "+00:00");
        let is_date = date.get_type(schema).is_ok_and(|kind| kind == DataType::Date32);
        let date = match date.as_ref() {
            // As `date '9999-12-31'` is planned.
            Expr::Cast(Cast { expr: text, field }) if *field.data_type() == DataType::Date32 => match text.as_ref() {
                Expr::Literal(text, _) => text.cast_to(&DataType::Date32).ok().map(lit),
                _ => None,
            }
            .unwrap_or_else(|| date.as_ref().clone()),
            date => date.clone(),
        };
        (is_utc && is_date).then(|| Self { date, zone: zone.clone() })
    }

    /// The point of time with which it begins.
    fn begin(self) -> Expr {
        match self.date {
            Expr::Literal(ScalarValue::Date32(Some(day)), _) => {
                Expr::Literal(ScalarValue::TimestampNanosecond(Some(begin_of_day(day)), self.zone), None)
            }
            date => point_of_time(date, self.zone),
        }
    }
}

fn compared(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => match both(&left, op, &right, schema) {
            Some(exact) => Transformed::yes(exact),
            None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
        },
        Expr::Between(between) => match bounded(&between, schema) {
            Some(exact) => Transformed::yes(exact),
            None => Transformed::no(Expr::Between(between)),
        },
        other => Transformed::no(other),
    }
}

/// A comparison with a date on one side.
fn both(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    if let Some(date) = CastDate::of(left, schema) {
        return of_date(date, op, right);
    }
    let date = CastDate::of(right, schema)?;
    of_date(date, op.swap()?, left)
}

fn of_date(date: CastDate, op: Operator, other: &Expr) -> Option<Expr> {
    match other {
        Expr::Literal(ScalarValue::TimestampNanosecond(Some(at), _), _) => {
            let (day, is_begin) = (at.div_euclid(NANOS_OF_DAY), at.rem_euclid(NANOS_OF_DAY) == 0);
            let day = lit(ScalarValue::Date32(Some(i32::try_from(day).ok()?)));
            match op {
                Operator::Gt | Operator::LtEq => Some(binary_expr(date.date, op, day)),
                _ if is_begin => Some(binary_expr(date.date, op, day)),
                Operator::GtEq => Some(binary_expr(date.date, Operator::Gt, day)),
                Operator::Lt => Some(binary_expr(date.date, Operator::LtEq, day)),
                _ => Some(binary_expr(date.begin(), op, other.clone())),
            }
        }
        // What is known when the query begins becomes a literal, and is looked at again.
        other if is_constant(other) && !matches!(date.date, Expr::Literal(..)) => None,
        other => Some(binary_expr(date.begin(), op, other.clone())),
    }
}

fn is_constant(expr: &Expr) -> bool {
    let is_subquery = |part: &Expr| Ok(matches!(part, Expr::ScalarSubquery(_)));
    !expr.any_column_refs() && !expr.contains_outer() && !expr.exists(is_subquery).unwrap_or(true)
}

/// BETWEEN with a date among its values, as two comparisons.
fn bounded(between: &Between, schema: &DFSchema) -> Option<Expr> {
    let Between { expr, negated, low, high } = between;
    if [expr, low, high].into_iter().all(|side| CastDate::of(side, schema).is_none()) {
        return None;
    }
    let compared = |op, bound: &Expr| {
        both(expr, op, bound, schema).unwrap_or_else(|| binary_expr(expr.as_ref().clone(), op, bound.clone()))
    };
    Some(match negated {
        false => compared(Operator::GtEq, low).and(compared(Operator::LtEq, high)),
        true => compared(Operator::Lt, low).or(compared(Operator::Gt, high)),
    })
}
