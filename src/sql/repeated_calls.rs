//! Calls that differ in casts alone, which DataFusion takes for one: their names say nothing of casts.
//!
//! ```text
//! SELECT max(f), max(f::REAL)        max(f), max(coalesce(f::REAL))
//! ```
//!
//! `coalesce(x)` is x, and the optimizer knows.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName, OrderBy,
    Select, SetExpr, VisitMut, VisitorMut,
};

use super::repeated_names::{folded, without_casts};

/// Gives calls in the SELECTs of a query names of their own, and in what orders its rows.
pub(super) fn tell_apart(body: &mut SetExpr, order: &mut Option<OrderBy>) {
    match body {
        SetExpr::Select(select) => tell_apart_in(select, order),
        SetExpr::SetOperation { left, right, .. } => {
            tell_apart(left, &mut None);
            tell_apart(right, &mut None);
        }
        _ => {}
    }
}

fn tell_apart_in(select: &mut Select, order: &mut Option<OrderBy>) {
    // Most have none, and texts of large expressions take time.
    if select.visit(&mut AnyCast).is_continue() && order.visit(&mut AnyCast).is_continue() {
        return;
    }
    let mut calls = Calls::default();
    // What is found first, and what is wrapped then.
    for wraps in [false, true] {
        calls.wraps = wraps;
        let Select { projection, group_by, having, qualify, .. } = select;
        let ControlFlow::Continue(()) = projection.visit(&mut calls);
        let ControlFlow::Continue(()) = group_by.visit(&mut calls);
        let ControlFlow::Continue(()) = having.visit(&mut calls);
        let ControlFlow::Continue(()) = qualify.visit(&mut calls);
        let ControlFlow::Continue(()) = order.visit(&mut calls);
        if calls.texts.values().all(|texts| texts.len() < 2) {
            return;
        }
    }
}

/// Breaks off where a cast is.
struct AnyCast;

impl VisitorMut for AnyCast {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Cast { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// The texts of calls, by what they are without casts.
#[derive(Default)]
struct Calls {
    texts: HashMap<String, Vec<String>>,
    wraps: bool,
}

impl VisitorMut for Calls {
    type Break = Infallible;

    // Those within others are wrapped after these: their texts are as they were found.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Infallible> {
        if !matches!(expr, Expr::Function(Function { args: FunctionArguments::List(_), .. })) {
            return ControlFlow::Continue(());
        }
        let text = folded(&expr.to_string());
        let texts = self.texts.entry(folded(&without_casts(expr).0.to_string())).or_default();
        match texts.iter().position(|other| *other == text) {
            None if !self.wraps => texts.push(text),
            Some(number) if self.wraps => wrap(expr, number),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Puts so many calls around the first argument of a call that is no constant: functions look at those when they are
/// planned.
fn wrap(call: &mut Expr, times: usize) {
    let Expr::Function(Function { args: FunctionArguments::List(list), .. }) = call else { return };
    let mut arguments = list.args.iter_mut().filter_map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    let Some(first) = arguments.find(|expr| !matches!(expr, Expr::Value(_))) else { return };
    for _ in 0..times {
        let argument = FunctionArg::Unnamed(FunctionArgExpr::Expr(first.clone()));
        let args = FunctionArgumentList { duplicate_treatment: None, args: vec![argument], clauses: Vec::new() };
        *first = Expr::Function(Function {
            name: ObjectName::from(vec![Ident::new("coalesce")]),
            uses_odbc_syntax: false,
            parameters: FunctionArguments::None,
            args: FunctionArguments::List(args),
            filter: None,
            null_treatment: None,
            over: None,
            within_group: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::ast::Statement;
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    #[test]
    fn calls_that_differ_in_casts_are_told_apart() {
        for (written, want) in [
            ("max(f), max(f) FROM t", "max(f), max(f) FROM t"),
            ("max(f), MAX(f::REAL) FROM t", "max(f), MAX(coalesce(f::REAL)) FROM t"),
            (
                "max(f::INT), max(f), max(f::REAL) FROM t HAVING max(f) > 1 ORDER BY max(f::REAL)",
                "max(f::INT), max(coalesce(f)), max(coalesce(coalesce(f::REAL))) FROM t HAVING max(coalesce(f)) > 1 \
                 ORDER BY max(coalesce(coalesce(f::REAL)))",
            ),
            ("max(f::REAL) FROM t", "max(f::REAL) FROM t"),
            (
                "date_part('day', d), date_part('day', d::DATE)",
                "date_part('day', d), date_part('day', coalesce(d::DATE))",
            ),
            ("count(*), count(DISTINCT a), count(a::INT) FROM t", "count(*), count(DISTINCT a), count(a::INT) FROM t"),
        ] {
            let mut parsed = Parser::parse_sql(&GenericDialect {}, &format!("SELECT {written}")).unwrap();
            let Statement::Query(query) = &mut parsed[0] else { panic!("{written}") };
            let query = query.as_mut();
            tell_apart(&mut query.body, &mut query.order_by);
            assert_eq!(query.to_string(), format!("SELECT {want}"), "{written}");
        }
    }
}
