//! Conditions of several readers of the same rows, as one that keeps what any of them wants.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

use crate::logical::is_subquery;

/// What is true of all rows for which the conditions of one reader are: of those that ask about the same columns for
/// themselves, and of all.
pub(super) fn together(readers: &[Vec<Expr>]) -> Option<Expr> {
    let first = readers.first()?;
    let groups: BTreeSet<_> = first.iter().map(columns_of).collect();
    let of_columns = groups.iter().filter_map(|columns| {
        let within = |conditions: &Vec<Expr>| {
            conjunction(conditions.iter().filter(|one| columns_of(one).is_subset(columns)).cloned())
        };
        any_of(readers.iter().map(within))
    });
    let mut all: Vec<_> = of_columns.collect();
    if groups.len() > 1 {
        all.extend(any_of(readers.iter().map(|conditions| conjunction(conditions.iter().cloned()))));
    }
    all.dedup();
    conjunction(all)
}

/// The columns that an expression is of.
pub(super) fn columns_of(expr: &Expr) -> BTreeSet<Column> {
    expr.column_refs().into_iter().cloned().collect()
}

/// One of the conditions, if all are there.
fn any_of(conditions: impl Iterator<Item = Option<Expr>>) -> Option<Expr> {
    let mut different = Vec::new();
    for condition in conditions {
        let condition = condition?;
        if !different.contains(&condition) {
            different.push(condition);
        }
    }
    disjunction(different)
}

/// Whether a condition may be an error of some values, so that nobody may ask it of rows that only others want.
/// Functions that are not known here may. What depends on no row is an error for all of them, or for none.
pub(super) fn may_fail(condition: &Expr, schema: &DFSchema) -> bool {
    let mut may_fail = false;
    // The closure does not fail.
    let _ = condition.apply(|part| {
        let is_constant = !part.any_column_refs() && !part.is_volatile() && !has_subquery(part);
        may_fail |= !is_constant && !is_safe(part, schema);
        Ok(match (may_fail, is_constant) {
            (true, _) => TreeNodeRecursion::Stop,
            (false, true) => TreeNodeRecursion::Jump,
            (false, false) => TreeNodeRecursion::Continue,
        })
    });
    may_fail
}

/// Whether an expression, apart from what is in it, is an error of no values.
fn is_safe(part: &Expr, schema: &DFSchema) -> bool {
    match part {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => {
            use Operator::{And, Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq, Or};
            matches!(op, And | Eq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom | Lt | LtEq | NotEq | Or)
        }
        Expr::Cast(cast) => {
            let from = cast.expr.get_type(schema);
            let is_plain = from.is_ok_and(|from| !from.is_string() && !from.is_nested() && !from.is_binary());
            is_plain && !crate::logical::may_fail(part, schema)
        }
        part => matches!(
            part,
            Expr::Column(_)
                | Expr::Literal(..)
                | Expr::Not(_)
                | Expr::IsNull(_)
                | Expr::IsNotNull(_)
                | Expr::IsTrue(_)
                | Expr::IsFalse(_)
                | Expr::IsUnknown(_)
                | Expr::IsNotTrue(_)
                | Expr::IsNotFalse(_)
                | Expr::IsNotUnknown(_)
                | Expr::Between(_)
                | Expr::InList(_)
                | Expr::Like(_)
                | Expr::TryCast(_)
        ),
    }
}

/// Whether it has a subquery, which may refer to any column.
pub(super) fn has_subquery(expr: &Expr) -> bool {
    let is = |part: &Expr| is_subquery(part) || matches!(part, Expr::OuterReferenceColumn(..));
    expr.exists(|part| Ok(is(part))).unwrap_or(true)
}
