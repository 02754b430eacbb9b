//! Casts that lose something stay in comparisons.
//!
//! DataFusion compares the column in place of the cast, with the literal in the type of the column: of `CAST(price AS
//! INT) = 2` it makes `price = 2.00`, which 2.37 is not, though its cast is 2, and what `TRY_CAST` makes null is
//! compared. Where it leaves out files and row groups, it takes the casts of least and greatest values for those of all
//! between them; times of day are not. Such casts are hidden from it here.
//!
//! ```text
//! CAST(price AS Int32) = 2                 same(CAST(price AS Int32)) = 2
//! TRY_CAST(id AS Int8) > 60                same(TRY_CAST(id AS Int8)) > 60
//! CAST(at AS Time64(ns)) > 12:00:00        same(CAST(at AS Time64(ns))) > 12:00:00
//! ```
//!
//! Casts that keep all values apart and in order are as they were: those that comparisons of two types bring along. So
//! are those that would fail for some numbers, as of 3,000,000,000 to 32 bits: nothing fails then.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, Cast, InList, TryCast};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::exact::with_exact_casts;
use super::same::same;
use crate::logical::{compares, have_room, keep_digits};

#[derive(Debug)]
pub(super) struct ExactCasts;

impl OptimizerRule for ExactCasts {
    fn name(&self) -> &str {
        "exact_casts"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        with_exact_casts(plan, compared)
    }
}

/// A comparison, with its casts hidden that lose something.
fn compared(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => {
            let (left, right) = (kept(*left, schema), kept(*right, schema));
            let is_other = left.transformed || right.transformed;
            let compared = BinaryExpr { left: Box::new(left.data), op, right: Box::new(right.data) };
            Transformed::new_transformed(Expr::BinaryExpr(compared), is_other)
        }
        Expr::InList(InList { expr, list, negated }) => {
            let expr = kept(*expr, schema);
            let list: Vec<_> = list.into_iter().map(|value| kept(value, schema)).collect();
            let is_other = expr.transformed || list.iter().any(|value| value.transformed);
            let list = list.into_iter().map(|value| value.data).collect();
            let compared = InList { expr: Box::new(expr.data), list, negated };
            Transformed::new_transformed(Expr::InList(compared), is_other)
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            let [expr, low, high] = [*expr, *low, *high].map(|side| kept(side, schema));
            let is_other = expr.transformed || low.transformed || high.transformed;
            let [expr, low, high] = [expr, low, high].map(|side| Box::new(side.data));
            Transformed::new_transformed(Expr::Between(Between { expr, negated, low, high }), is_other)
        }
        expr => Transformed::no(expr),
    }
}

/// A side of a comparison, in which a cast that loses something is hidden: also one below others.
fn kept(side: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match side {
        Expr::Cast(Cast { expr, field }) => {
            let loses = of_rows(&expr, schema).is_some_and(|from| loses(&from, field.data_type()));
            hidden_if(loses, kept(*expr, schema), |expr| Expr::Cast(Cast { expr, field }))
        }
        Expr::TryCast(TryCast { expr, field }) => {
            let to = field.data_type();
            let loses = of_rows(&expr, schema).is_some_and(|from| loses(&from, to) || gives_nulls(&from, to));
            hidden_if(loses, kept(*expr, schema), |expr| Expr::TryCast(TryCast { expr, field }))
        }
        side => Transformed::no(side),
    }
}

/// A cast of what may be hidden, hidden if it loses something.
fn hidden_if(loses: bool, inner: Transformed<Expr>, cast: impl FnOnce(Box<Expr>) -> Expr) -> Transformed<Expr> {
    let is_other = inner.transformed;
    let cast = cast(Box::new(inner.data));
    match loses {
        true => Transformed::yes(same(cast)),
        false => Transformed::new_transformed(cast, is_other),
    }
}

/// The type of what is cast, unless it is a constant: of these the value is computed as it stands.
fn of_rows(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    (expr.any_column_refs() || expr.contains_outer()).then(|| expr.get_type(schema).ok())?
}

/// Whether a cast gives null where numbers have no place.
fn gives_nulls(from: &DataType, to: &DataType) -> bool {
    have_room(from, to) == Some(false)
}

/// Whether a cast gives one value for several, or some in another order.
fn loses(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Dictionary(_, from), to) => loses(from, to),
        (from, DataType::Dictionary(_, to)) => loses(from, to),
        (DataType::Timestamp(_, Some(zone)), DataType::Timestamp(_, None) | DataType::Date32 | DataType::Date64) => {
            // Where clocks are put back, an hour comes twice.
            !zone.starts_with(['+', '-']) && !zone.eq_ignore_ascii_case("utc")
        }
        (DataType::Timestamp(..), DataType::Time32(_) | DataType::Time64(_)) => true,
        (from, to) => keep_digits(from, to) == Some(false),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::DataType::{
        Date32, Decimal128, Dictionary, Float64, Int8, Int32, Int64, Time64, Timestamp, UInt8, UInt64, Utf8,
    };
    use datafusion::arrow::datatypes::TimeUnit::Nanosecond;

    use super::*;

    #[test]
    fn casts_that_comparisons_bring_along_lose_nothing() {
        let in_zone = |zone: &str| Timestamp(Nanosecond, Some(zone.into()));
        for (from, to) in [
            (Int32, Int64),
            (UInt8, Int32),
            (Int64, Int64),
            (Int64, Decimal128(20, 0)),
            (UInt64, Decimal128(20, 0)),
            (Decimal128(15, 2), Decimal128(30, 15)),
            (Decimal128(2, 0), Int8),
            (Int64, Float64),
            (Utf8, Int64),
            (Date32, Timestamp(Nanosecond, None)),
            (Timestamp(Nanosecond, None), Date32),
            (in_zone("UTC"), Date32),
            (in_zone("+02:00"), Timestamp(Nanosecond, None)),
        ] {
            assert!(!loses(&from, &to) && !gives_nulls(&from, &to), "{from} as {to}");
        }
        for (from, to) in [
            (Decimal128(15, 2), Int64),
            (Decimal128(10, 2), Decimal128(10, 1)),
            (Timestamp(Nanosecond, None), Time64(Nanosecond)),
            (in_zone("Europe/Berlin"), Date32),
            (Dictionary(Box::new(Int32), Box::new(Decimal128(3, 1))), Int32),
        ] {
            assert!(loses(&from, &to), "{from} as {to}");
        }
        for (from, to) in [
            (Int64, Int32),
            (Int8, UInt64),
            (UInt64, Int64),
            (UInt8, Int8),
            (Decimal128(3, 0), Int8),
            (Decimal128(3, 0), UInt64),
            (Decimal128(10, 2), Decimal128(10, 4)),
            (Int64, Decimal128(18, 0)),
        ] {
            assert!(gives_nulls(&from, &to) && !loses(&from, &to), "{from} as {to}");
        }
    }
}
