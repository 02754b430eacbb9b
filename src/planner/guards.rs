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
//! is drawn anew for each row, or looks for rows of a subquery, stays as it is.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, disjunction, split_binary_owned, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, LogicalPlan, Operator, TableProviderFilterPushDown, TableScan, lit, when,
};

use crate::logical::{columns_within, is_guard, is_of_some, may_fail};

/// A plan whose conditions fail for no row that others beside them rule out; none where it has no such conditions.
pub(super) fn guarded(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let guarded = plan.clone().transform_up_with_subqueries(|node| {
        let schema = columns_within(&node)?;
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
    let guards = others.iter().filter(|condition| is_guard(condition, schema)).cloned();
    Ok(match (conjunction(guards), conjunction(risky)) {
        (Some(guard), Some(risky)) if is_of_some(&risky) => {
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
    let guards = others.into_iter().filter(|part| is_guard(part, schema)).collect();
    match (joined(guards), risky.iter().all(is_of_some) && !risky.is_empty()) {
        (Some(guard), true) => {
            let (decides, decided) =
                if op == Operator::And { (guard.is_false(), false) } else { (guard.is_true(), true) };
            Ok(Transformed::yes(when(decides, lit(decided)).otherwise(all)?))
        }
        _ => Ok(Transformed::new_transformed(all, has_changed)),
    }
}
