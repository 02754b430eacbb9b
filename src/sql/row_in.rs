//! `(a, b) IN (SELECT x, y ..)` is written out: DataFusion compares one column only.
//!
//! A row is among others if it is equal to one, and may be if no value says that it is not.
//!
//! ```text
//! (a, b) IN (S)   EXISTS (S with x = a AND y = b) OR NULL AND EXISTS (S with (x = a) IS NOT FALSE AND (y = b) IS NOT FALSE)
//! ```
//!
//! Where it counts only whether that is true, one of the two says it.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Query, Select, SetExpr, TableAlias, TableAliasColumnDef, TableFactor, UnaryOperator,
    Value,
};

use super::syntax::select_all;

/// Writes out what WHERE and HAVING ask of a SELECT.
pub(super) fn write_out_conditions(select: &mut Select) {
    select.selection.iter_mut().chain(&mut select.having).for_each(write_out_condition);
}

fn write_out_condition(condition: &mut Expr) {
    match condition {
        Expr::Nested(inner) => write_out_condition(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            write_out_condition(left);
            write_out_condition(right);
        }
        _ => {
            if let Some((row, others, negated)) = of_rows(condition) {
                let Some(found) = exists(row, others, negated) else { return };
                *condition = if negated { not(found) } else { found };
            }
        }
    }
}

/// Writes out an expression of which the value counts.
pub(super) fn write_out(expr: &mut Expr) {
    let Some((row, others, negated)) = of_rows(expr) else { return };
    let Some((is_found, may_be)) = exists(row, others, false).zip(exists(row, others, true)) else { return };
    let unknown = binary(Expr::value(Value::Null), BinaryOperator::And, may_be);
    let is_in = binary(is_found, BinaryOperator::Or, unknown);
    *expr = if negated { not(is_in) } else { is_in };
}

fn of_rows(expr: &Expr) -> Option<(&[Expr], &Query, bool)> {
    match expr {
        Expr::InSubquery { expr, subquery, negated } => match expr.as_ref() {
            Expr::Tuple(row) if row.len() > 1 => Some((row, subquery, *negated)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether there is a row that is equal to `row`, or `may_be`.
fn exists(row: &[Expr], others: &Query, may_be: bool) -> Option<Expr> {
    let names: Vec<String> = (1..=row.len()).map(|place| format!("__of_row_{place}")).collect();
    let columns = names.iter().map(TableAliasColumnDef::from_name).collect();
    let alias = TableAlias { explicit: true, name: Ident::new("__rows"), columns, at: None };
    let (subquery, alias) = (Box::new(others.clone()), Some(alias));
    let mut query = select_all(TableFactor::Derived { lateral: false, subquery, alias, sample: None })?;
    let pairs = names.iter().zip(row).map(|(name, value)| {
        let column = Expr::CompoundIdentifier(vec![Ident::new("__rows"), Ident::new(name)]);
        let equal = nested(binary(column, BinaryOperator::Eq, nested(value.clone())));
        if may_be { Expr::IsNotFalse(Box::new(equal)) } else { equal }
    });
    let all = pairs.reduce(|one, other| binary(one, BinaryOperator::And, other));
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.selection = all;
    }
    Some(Expr::Exists { subquery: Box::new(query), negated: false })
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

fn not(expr: Expr) -> Expr {
    Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(nested(expr)) }
}

fn nested(expr: Expr) -> Expr {
    Expr::Nested(Box::new(expr))
}
