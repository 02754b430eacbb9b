//! Which subqueries DataFusion joins as it should.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{BinaryExpr, Cast};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, Expr, FetchType, JoinType, LogicalPlan, Operator, SkipType};

use super::outside::{depends_on_outside, has_all, outer_columns, subquery_of};

/// What is asked of a subquery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Asked {
    /// Its one value.
    Value,
    /// Whether it has rows.
    Exists,
    /// Whether a value is among its own.
    In,
    /// Its rows, beside those outside.
    Rows,
}

/// Whether DataFusion joins a subquery as it should.
pub(in super::super) fn is_simple(plan: &LogicalPlan, asked: Asked) -> Result<bool> {
    is_simple_below(plan, asked, false)
}

fn is_simple_below(plan: &LogicalPlan, asked: Asked, is_aggregated: bool) -> Result<bool> {
    if !depends_on_outside(plan)? {
        return Ok(true);
    }
    match plan {
        LogicalPlan::Projection(projection) => {
            let depends = projection.expr.iter().any(Expr::contains_outer);
            let has_simple = has_simple_subqueries(&projection.expr, projection.input.schema())?;
            Ok(!depends && has_simple && is_simple_below(&projection.input, asked, is_aggregated)?)
        }
        LogicalPlan::Filter(filter) => {
            let conditions = split_conjunction(&filter.predicate);
            let is_key = |condition: &&Expr| !condition.contains_outer() || is_key(condition);
            let is_plain = !is_aggregated || conditions.iter().all(is_key);
            let is_of_groups = matches!(filter.input.as_ref(), LogicalPlan::Aggregate(_));
            let has_simple = has_simple_subqueries([&filter.predicate], filter.input.schema())?;
            Ok(is_plain && !is_of_groups && has_simple && is_simple_below(&filter.input, asked, is_aggregated)?)
        }
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let conditions = join.on.iter().flat_map(|(left, right)| [left, right]).chain(&join.filter);
            let depends = conditions.into_iter().any(Expr::contains_outer);
            let sides = [&join.left, &join.right].map(|side| is_simple_below(side, asked, is_aggregated));
            let [left, right] = sides;
            Ok(!depends && left? && right?)
        }
        LogicalPlan::Aggregate(Aggregate { input, group_expr, aggr_expr, .. }) => {
            let is_possible = asked == Asked::Value && group_expr.is_empty() && !is_aggregated;
            let depends = aggr_expr.iter().any(Expr::contains_outer);
            Ok(is_possible && !depends && is_simple_below(input, asked, true)?)
        }
        LogicalPlan::Limit(limit) if asked == Asked::Exists => {
            let is_from_first = matches!(limit.get_skip_type()?, SkipType::Literal(0));
            let has_rows = matches!(limit.get_fetch_type()?, FetchType::Literal(Some(1..)));
            Ok(is_from_first && has_rows && is_simple_below(&limit.input, asked, is_aggregated)?)
        }
        _ => Ok(false),
    }
}

/// Whether all subqueries of expressions over `rows` are simple, and know no rows that are further outside.
fn has_simple_subqueries<'a>(exprs: impl IntoIterator<Item = &'a Expr>, rows: &DFSchema) -> Result<bool> {
    let mut are_simple = true;
    for expr in exprs {
        expr.apply(|expr| {
            if let Some(subquery) = subquery_of(expr) {
                let asked = match expr {
                    Expr::ScalarSubquery(_) => Asked::Value,
                    Expr::Exists(_) => Asked::Exists,
                    _ => Asked::In,
                };
                let plan = subquery.subquery.as_ref();
                are_simple &= has_all(rows, &outer_columns(plan)?) && is_simple(plan, asked)?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(are_simple)
}

/// Whether a condition says which value a column has in all rows that a row outside is to see: then there is one group
/// for each value.
fn is_key(condition: &Expr) -> bool {
    let is_column = |expr: &Expr| match expr {
        Expr::Column(_) => true,
        Expr::Cast(Cast { expr, .. }) => matches!(expr.as_ref(), Expr::Column(_)),
        _ => false,
    };
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
            is_column(left) && !right.any_column_refs() || is_column(right) && !left.any_column_refs()
        }
        _ => false,
    }
}
