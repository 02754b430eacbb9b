//! Conditions that may fail, behind those beside them that cannot.
//!
//! `x <> 0 AND 10 / x > 2` is written so that nothing is divided by 0. DataFusion evaluates both sides of all rows
//! where more than a fifth pass the first one, and makes `AND` and `OR` of a `CASE` with conditions in its branches.
//! Here what may fail is evaluated of the rows that need it, by a `CASE` that is not simplified any more:
//!
//! ```text
//! WHERE x <> 0 AND 10 / x > 2     WHERE x <> 0 AND CASE WHEN x <> 0 THEN 10 / x > 2 ELSE false END
//! x <> 0 AND 10 / x > 2           CASE WHEN x <> 0 IS FALSE THEN false ELSE x <> 0 AND 10 / x > 2 END
//! x = 0 OR 10 / x > 2             CASE WHEN x = 0 IS TRUE THEN true ELSE x = 0 OR 10 / x > 2 END
//! ```
//!
//! In whichever order they are written, since conditions are moved. The same values come out, with fewer errors. What
//! is drawn anew for each row, or has a subquery, stays as it is.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{
    conjunction, disjunction, merge_schema, split_binary_owned, split_conjunction_owned,
};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, TableProviderFilterPushDown, TableScan, lit, when,
};

/// A plan whose conditions fail for no row that others beside them rule out; none where it has no such conditions.
pub(super) fn guarded(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let guarded = plan.clone().transform_up_with_subqueries(|node| {
        let schema = match &node {
            LogicalPlan::TableScan(scan) => {
                DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?
            }
            node => merge_schema(&node.inputs()),
        };
        match node {
            LogicalPlan::Filter(mut filter) => {
                let conditions = split_conjunction_owned(filter.predicate.clone());
                let Some(conditions) = of_filter(conditions, &schema)? else {
                    return Ok(Transformed::no(LogicalPlan::Filter(filter)));
                };
                filter.predicate = conjunction(conditions).unwrap_or_default();
                Ok(Transformed::yes(LogicalPlan::Filter(filter)))
            }
            LogicalPlan::TableScan(mut scan) => match of_filter(scan.filters.clone(), &schema)? {
                Some(conditions) if takes_instead(&scan, &conditions)? => {
                    scan.filters = conditions;
                    Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
                }
                _ => Ok(Transformed::no(LogicalPlan::TableScan(scan))),
            },
            node => {
                let names = NamePreserver::new(&node);
                node.map_expressions(|expr| {
                    let name = names.save(&expr);
                    Ok(of_value(expr, &schema)?.update_data(|expr| name.restore(expr)))
                })
            }
        }
    })?;
    Ok(guarded.transformed.then_some(guarded.data))
}

/// Whether a source filters by other conditions as it does by those that it was asked about.
fn takes_instead(scan: &TableScan, conditions: &[Expr]) -> Result<bool> {
    use TableProviderFilterPushDown::{Exact, Unsupported};
    let asked = |of: &[Expr]| scan.source.supports_filters_pushdown(&of.iter().collect::<Vec<_>>());
    let (before, after) = (asked(&scan.filters)?, asked(conditions)?);
    let filters_all = after.iter().all(|how| *how == Exact);
    // All are evaluated above again.
    Ok(filters_all || !before.contains(&Exact) && !after.contains(&Unsupported))
}

/// Conditions of rows that pass all of them; none where nothing is to be done.
fn of_filter(conditions: Vec<Expr>, schema: &DFSchema) -> Result<Option<Vec<Expr>>> {
    let values = conditions.into_iter().map(|condition| of_value(condition, schema));
    let values = values.collect::<Result<Vec<_>>>()?;
    let has_changed = values.iter().any(|value| value.transformed);
    let (risky, others): (Vec<_>, Vec<_>) =
        values.into_iter().map(|value| value.data).partition(|condition| may_fail(condition, schema));
    let guards = others.iter().filter(|condition| is_guard(condition)).cloned();
    Ok(match (conjunction(guards), conjunction(risky)) {
        (Some(guard), Some(risky)) if is_guard(&risky) => {
            let last = when(guard, risky).otherwise(lit(false))?;
            Some(others.into_iter().chain([last]).collect())
        }
        (_, risky) => has_changed.then(|| others.into_iter().chain(risky).collect()),
    })
}

/// A value that fails only where it has to be known.
fn of_value(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let op = match &expr {
        Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => *op,
        _ => return expr.map_children(|child| of_value(child, schema)),
    };
    let before = expr.clone();
    let parts = split_binary_owned(expr, op).into_iter().map(|part| of_value(part, schema));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let has_changed = parts.iter().any(|part| part.transformed);
    let parts: Vec<Expr> = parts.into_iter().map(|part| part.data).collect();
    let joined = |parts: Vec<Expr>| if op == Operator::And { conjunction(parts) } else { disjunction(parts) };
    let all = if has_changed { joined(parts.clone()).unwrap_or(before) } else { before };
    let (risky, others): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| may_fail(part, schema));
    let guards = others.into_iter().filter(is_guard).collect();
    match (joined(guards), risky.iter().all(is_guard) && !risky.is_empty()) {
        (Some(guard), true) => {
            let (decides, decided) =
                if op == Operator::And { (guard.is_false(), false) } else { (guard.is_true(), true) };
            Ok(Transformed::yes(when(decides, lit(decided)).otherwise(all)?))
        }
        _ => Ok(Transformed::new_transformed(all, has_changed)),
    }
}

/// Whether it may be evaluated more than once, or of some rows alone.
fn is_guard(expr: &Expr) -> bool {
    let is_plain = |expr: &Expr| {
        !matches!(
            expr,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::Unnest(_)
        )
    };
    !expr.is_volatile() && !expr.exists(|expr| Ok(!is_plain(expr))).unwrap_or(true)
}

/// Whether there are values of which it makes an error.
fn may_fail(expr: &Expr, schema: &DFSchema) -> bool {
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    let is_literal = |expr: &Expr| matches!(expr, Expr::Literal(..));
    let fails = |expr: &Expr| match expr {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => {
            type_of(expr).is_none_or(|of| !of.is_floating()) && !is_other_than_zero(right)
        }
        Expr::Cast(Cast { expr, field }) => {
            !is_literal(expr) && type_of(expr).is_none_or(|from| has_no_room(&from, field.data_type()))
        }
        // What reads a time or a number from a text.
        Expr::ScalarFunction(ScalarFunction { args, .. }) => {
            let of_text = |arg: &Expr| !is_literal(arg) && type_of(arg).is_some_and(|of| of.is_string());
            let gives = type_of(expr);
            args.iter().any(of_text) && gives.is_none_or(|of| !of.is_string() && of != DataType::Boolean)
        }
        _ => false,
    };
    expr.exists(|expr| Ok(fails(expr))).unwrap_or(true)
}

/// Whether a cast may find a value that the type does not have.
fn has_no_room(from: &DataType, to: &DataType) -> bool {
    let (before, after) = (integer_digits(from), integer_digits(to));
    match (from, to) {
        (from, to) if from.is_string() => !to.is_string(),
        (from, to) if from.is_signed_integer() && to.is_unsigned_integer() => true,
        (from, to) if from.is_unsigned_integer() && to.is_signed_integer() => {
            to.primitive_width() <= from.primitive_width()
        }
        (from, _) if from.is_floating() => after.is_some(),
        _ => before.zip(after).is_some_and(|(before, after)| after < before),
    }
}

/// How many digits numbers of a type may have before the point.
fn integer_digits(of: &DataType) -> Option<i16> {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    match of {
        Int8 | UInt8 => Some(3),
        Int16 | UInt16 => Some(5),
        Int32 | UInt32 => Some(10),
        Int64 => Some(19),
        UInt64 => Some(20),
        Decimal32(digits, scale) | Decimal64(digits, scale) | Decimal128(digits, scale) | Decimal256(digits, scale) => {
            Some(i16::from(*digits) - i16::from(*scale))
        }
        _ => None,
    }
}

fn is_other_than_zero(expr: &Expr) -> bool {
    let Expr::Literal(value, _) = expr else { return false };
    !value.is_null() && ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| *value != zero)
}
