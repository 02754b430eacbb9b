//! Makes a decimal of the digits that are written.
//!
//! Where a decimal is compared with a literal like `70.21`, DataFusion compares both as decimals with 15 digits behind
//! the point. It gets these from the floating-point number that the literal has become, of which some are others than
//! what is written, so that `price = 70.21` is true of nothing. Here they are the shortest digits that give the number.
//!
//! ```text
//! CAST(price AS Decimal(30, 15)) = CAST(70.21 AS Decimal(30, 15))
//!   before:  = 70.209999999999992
//!   now:     = 70.210000000000000
//! ```
//!
//! Floating-point numbers that are in columns, are computed, or have no such decimal, are compared with decimals as
//! floating-point numbers: 16.9 would have other digits than the decimal 16.90, and infinity none.
//!
//! ```text
//! CAST(price AS Decimal(30, 15)) = CAST(f AS Decimal(30, 15))
//!   now:     CAST(price AS Float64) = f
//! ```

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::exact::with_exact_casts;
use crate::logical::compares;

#[derive(Debug)]
pub(super) struct ExactDecimals;

impl OptimizerRule for ExactDecimals {
    fn name(&self) -> &str {
        "exact_decimals"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        with_exact_casts(plan, |expr, schema| match exact(&expr).or_else(|| compared_as_floats(&expr, schema)) {
            Some(exact) => Transformed::yes(exact),
            None => Transformed::no(expr),
        })
    }
}

/// The decimal of a floating-point literal that is cast to one, if it fits.
fn exact(expr: &Expr) -> Option<Expr> {
    let (expr, field) = cast_of(expr)?;
    let to = field.data_type();
    let digits = match expr {
        Expr::Literal(ScalarValue::Float64(Some(number)), _) if number.is_finite() => number.to_string(),
        Expr::Literal(ScalarValue::Float32(Some(number)), _) if number.is_finite() => number.to_string(),
        _ => return None,
    };
    let decimal = to.is_decimal().then(|| ScalarValue::from(digits).cast_to(to).ok()).flatten()?;
    Some(Expr::Literal(decimal, None))
}

/// What a cast is of, and of what kind it makes that.
fn cast_of(expr: &Expr) -> Option<(&Expr, &FieldRef)> {
    match expr {
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => Some((expr, field)),
        _ => None,
    }
}

/// A comparison of a decimal with a floating-point number, of which DataFusion has made a decimal for that.
fn compared_as_floats(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    if let Expr::Between(Between { expr, negated, low, high }) = expr {
        let all = [expr.as_ref(), low, high];
        let least = as_floats(expr, Operator::GtEq, low, &all, schema);
        let most = as_floats(expr, Operator::LtEq, high, &all, schema);
        if least.is_none() && most.is_none() || expr.is_volatile() {
            return None;
        }
        let least = least.unwrap_or_else(|| expr.as_ref().clone().gt_eq(low.as_ref().clone()));
        let most = most.unwrap_or_else(|| expr.as_ref().clone().lt_eq(high.as_ref().clone()));
        return Some(if *negated { !least.and(most) } else { least.and(most) });
    }
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else { return None };
    compares(*op).then(|| as_floats(left, *op, right, &[left, right], schema)).flatten()
}

/// Two of `all` that are compared, where one is such a number.
fn as_floats(left: &Expr, op: Operator, right: &Expr, all: &[&Expr], schema: &DFSchema) -> Option<Expr> {
    let compared = |left: Expr, right: Expr| Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)));
    let of_left = float_in(left, right, all, schema).map(|(float, decimal)| compared(float, decimal));
    of_left.or_else(|| float_in(right, left, all, schema).map(|(float, decimal)| compared(decimal, float)))
}

/// The number that was cast for a comparison of `all` with `decimal`, and that as a floating-point number.
fn float_in(side: &Expr, decimal: &Expr, all: &[&Expr], schema: &DFSchema) -> Option<(Expr, Expr)> {
    let (float, field) = cast_of(side)?;
    if is_computed_decimal(float, field.data_type()) {
        return None;
    }
    let float_type = float.get_type(schema).ok().filter(DataType::is_floating)?;
    let decimal = match cast_of(decimal) {
        Some((inner, to)) if to.data_type() == field.data_type() && is_decimal(inner, schema) => inner,
        _ => decimal,
    };
    if !is_decimal(decimal, schema) {
        return None;
    }
    // A cast that somebody has written makes another type of it.
    let given = all.iter().map(|side| type_before(side, field.data_type(), schema)).collect::<Option<Vec<_>>>()?;
    let common = match given.as_slice() {
        [left, right] => comparison_coercion(left, right),
        [of, low, high] => comparison_coercion(&comparison_coercion(of, low)?, &comparison_coercion(of, high)?),
        _ => None,
    };
    let is_for_comparison = common.as_ref() == Some(field.data_type());
    is_for_comparison.then(|| (float.clone(), Expr::Cast(Cast::new(Box::new(decimal.clone()), float_type))))
}

/// Whether a number is computed of what is written alone, as `0.06 + 0.01`, and fits a decimal: that is what is meant.
fn is_computed_decimal(float: &Expr, decimal: &DataType) -> bool {
    let DataType::Decimal128(precision, scale) = decimal else { return false };
    let most = 10f64.powi(i32::from(*precision) - i32::from(*scale));
    !matches!(float, Expr::Literal(..)) && written(float).is_some_and(|number| number.abs() < most)
}

/// The number that is written, if it is nothing but that.
fn written(float: &Expr) -> Option<f64> {
    match float {
        Expr::Literal(value, _) if value.data_type().is_numeric() => match value.cast_to(&DataType::Float64).ok()? {
            ScalarValue::Float64(number) => number,
            _ => None,
        },
        Expr::Negative(of) => written(of).map(|number| -number),
        Expr::Cast(cast) if cast.field.data_type().is_numeric() => written(&cast.expr),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let (left, right) = (written(left)?, written(right)?);
            match op {
                Operator::Plus => Some(left + right),
                Operator::Minus => Some(left - right),
                Operator::Multiply => Some(left * right),
                Operator::Divide => Some(left / right),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The type of a side before it was cast to that of the comparison.
fn type_before(side: &Expr, common: &DataType, schema: &DFSchema) -> Option<DataType> {
    match cast_of(side) {
        Some((inner, to)) if to.data_type() == common => inner.get_type(schema).ok(),
        _ => side.get_type(schema).ok(),
    }
}

fn is_decimal(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|of| of.is_decimal())
}
