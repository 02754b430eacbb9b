//! Puts `||` back where it binds.
//!
//! The parser takes it for as close as `*`, and so `'n' || id % 6` for `('n' || id) % 6`. It binds less closely than
//! arithmetic: `'n' || (id % 6)`. What is in parentheses is marked as such, so that the operators can be put in their
//! order again, from the inside out.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr};

/// Puts an expression in order whose parts are in order.
pub(super) fn rebind(expr: &mut Expr) {
    let Expr::BinaryOp { left, op, right } = expr else { return };
    if !is_arithmetic(op) {
        return;
    }
    let op = op.clone();
    if let Expr::BinaryOp { left: first, op: BinaryOperator::StringConcat, right: second } = left.as_ref() {
        let mut behind = Expr::BinaryOp { left: second.clone(), op, right: right.clone() };
        rebind(&mut behind);
        *expr = put_before(first.as_ref().clone(), behind);
    } else if let Expr::BinaryOp { left: first, op: BinaryOperator::StringConcat, right: second } = right.as_ref() {
        let mut before = Expr::BinaryOp { left: left.clone(), op, right: first.clone() };
        rebind(&mut before);
        *expr = concatenated(before, second.as_ref().clone());
    }
}

/// A chain of concatenations with another one before it.
fn put_before(first: Expr, chain: Expr) -> Expr {
    match chain {
        Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right } => {
            concatenated(put_before(first, *left), *right)
        }
        other => concatenated(first, other),
    }
}

fn concatenated(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::StringConcat, right: Box::new(right) }
}

fn is_arithmetic(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Divide, DuckIntegerDivide, Minus, Modulo, Multiply, MyIntegerDivide, Plus};
    matches!(op, Plus | Minus | Multiply | Divide | Modulo | DuckIntegerDivide | MyIntegerDivide)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::ops::ControlFlow;

    use datafusion::sql::sqlparser::ast::{VisitMut, VisitorMut};
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    struct Rebind;

    impl VisitorMut for Rebind {
        type Break = Infallible;

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
            rebind(expr);
            ControlFlow::Continue(())
        }
    }

    /// With all operators in parentheses.
    fn written_out(expr: &Expr) -> String {
        match expr {
            Expr::BinaryOp { left, op, right } => format!("({} {op} {})", written_out(left), written_out(right)),
            Expr::Nested(inner) => written_out(inner),
            other => other.to_string(),
        }
    }

    #[test]
    fn arithmetic_binds_closer() {
        for (text, expected) in [
            ("a || b % c", "(a || (b % c))"),
            ("a || b + c * d", "(a || (b + (c * d)))"),
            ("a || b * c + d || e", "((a || ((b * c) + d)) || e)"),
            ("a + b || c", "((a + b) || c)"),
            ("a - b || c || d / e", "(((a - b) || c) || (d / e))"),
            ("a || b - c || d || e", "(((a || (b - c)) || d) || e)"),
            ("a || b - c || (d || e) * f", "((a || (b - c)) || ((d || e) * f))"),
            ("(a || b) * c", "((a || b) * c)"),
            ("a * b || c", "((a * b) || c)"),
            ("a || b = c + d", "((a || b) = (c + d))"),
        ] {
            let mut parsed = Parser::new(&GenericDialect {}).try_with_sql(text).unwrap().parse_expr().unwrap();
            let ControlFlow::Continue(()) = parsed.visit(&mut Rebind);
            assert_eq!(written_out(&parsed), expected, "{text}");
        }
    }
}
