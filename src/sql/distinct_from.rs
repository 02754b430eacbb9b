//! Puts `IS [NOT] DISTINCT FROM` back where it binds.
//!
//! The parser takes all that follows for the right side, `a IS DISTINCT FROM (b AND c)`, where the operator binds more
//! closely than AND, OR and NOT: `(a IS DISTINCT FROM b) AND c`. What is in parentheses is marked as such, so that the
//! operators can be put in their order again, from the inside out.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator};

/// How closely an operator binds, from the loosest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Not,
    Is,
    Closer,
}

/// Puts an expression in order whose parts are in order.
pub(super) fn rebind(expr: &mut Expr) {
    let own = binding(expr);
    let operand = match expr {
        Expr::IsDistinctFrom(_, right) | Expr::IsNotDistinctFrom(_, right) => right,
        Expr::BinaryOp { op: BinaryOperator::And | BinaryOperator::Or, right, .. } => right,
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => expr,
        _ => return,
    };
    // Of operators that bind alike the first comes first. A NOT that stands before an operand is part of it.
    let loose = |expr: &Expr| match binding(expr) {
        Binding::Not => false,
        Binding::Is => own == Binding::Is,
        other => other < own,
    };
    if !loose(operand) {
        return;
    }
    let mut whole = std::mem::replace(operand.as_mut(), nothing());
    let mut first = &mut whole;
    while loose(first) {
        let Some(left) = left_of(first) else { return };
        first = left;
    }
    *operand.as_mut() = std::mem::replace(first, nothing());
    *first = std::mem::replace(expr, nothing());
    *expr = whole;
}

fn nothing() -> Expr {
    Expr::value(datafusion::sql::sqlparser::ast::Value::Null)
}

fn binding(expr: &Expr) -> Binding {
    match expr {
        Expr::BinaryOp { op: BinaryOperator::Or, .. } => Binding::Or,
        Expr::BinaryOp { op: BinaryOperator::And, .. } => Binding::And,
        Expr::UnaryOp { op: UnaryOperator::Not, .. } => Binding::Not,
        Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..) => Binding::Is,
        Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::IsTrue(_) | Expr::IsNotTrue(_) => Binding::Is,
        Expr::IsFalse(_) | Expr::IsNotFalse(_) | Expr::IsUnknown(_) | Expr::IsNotUnknown(_) => Binding::Is,
        _ => Binding::Closer,
    }
}

/// What stands before an operator.
fn left_of(expr: &mut Expr) -> Option<&mut Expr> {
    match expr {
        Expr::BinaryOp { left, .. } | Expr::IsDistinctFrom(left, _) | Expr::IsNotDistinctFrom(left, _) => Some(left),
        Expr::IsNull(left) | Expr::IsNotNull(left) | Expr::IsTrue(left) | Expr::IsNotTrue(left) => Some(left),
        Expr::IsFalse(left) | Expr::IsNotFalse(left) | Expr::IsUnknown(left) | Expr::IsNotUnknown(left) => Some(left),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::ast::{VisitMut, VisitorMut};
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;
    use std::ops::ControlFlow;

    struct All;

    impl VisitorMut for All {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            rebind(expr);
            ControlFlow::Continue(())
        }
    }

    /// The expression with parentheses around all that is not a name.
    fn shown(expr: &Expr) -> String {
        match expr {
            Expr::BinaryOp { left, op, right } => format!("({} {op} {})", shown(left), shown(right)),
            Expr::IsDistinctFrom(left, right) => format!("({} <> {})", shown(left), shown(right)),
            Expr::IsNotDistinctFrom(left, right) => format!("({} == {})", shown(left), shown(right)),
            Expr::UnaryOp { expr, .. } => format!("(not {})", shown(expr)),
            Expr::IsNull(expr) => format!("({} null)", shown(expr)),
            Expr::Nested(expr) => shown(expr),
            other => other.to_string(),
        }
    }

    #[test]
    fn it_binds_closer_than_and() {
        for (text, want) in [
            ("a IS DISTINCT FROM b AND c", "((a <> b) AND c)"),
            ("a IS NOT DISTINCT FROM b OR c AND d", "((a == b) OR (c AND d))"),
            ("a IS NOT DISTINCT FROM b AND c OR d", "(((a == b) AND c) OR d)"),
            ("a IS DISTINCT FROM (b AND c)", "(a <> (b AND c))"),
            ("a IS NOT DISTINCT FROM b AND c IS NOT DISTINCT FROM d OR e", "(((a == b) AND (c == d)) OR e)"),
            ("x AND a IS DISTINCT FROM b OR c OR d", "(((x AND (a <> b)) OR c) OR d)"),
            ("NOT a IS DISTINCT FROM b AND c", "((not (a <> b)) AND c)"),
            ("x OR NOT a IS DISTINCT FROM b AND c", "(x OR ((not (a <> b)) AND c))"),
            ("a IS NOT DISTINCT FROM b + 1 AND c > 2", "((a == (b + 1)) AND (c > 2))"),
            ("a IS DISTINCT FROM b IS NULL", "((a <> b) null)"),
            ("a IS DISTINCT FROM b IS DISTINCT FROM c AND d", "(((a <> b) <> c) AND d)"),
            ("a = b IS DISTINCT FROM c", "((a = b) <> c)"),
        ] {
            let mut parser = Parser::new(&GenericDialect {}).try_with_sql(text).unwrap();
            let mut expr = parser.parse_expr().unwrap();
            assert!(expr.visit(&mut All).is_continue());
            assert_eq!(shown(&expr), want, "{text}");
        }
    }
}
