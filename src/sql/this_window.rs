//! `foreach_window(t, 'SELECT .. FROM this_window')`: the text becomes a query whose `this_window` is a call.

use std::ops::ControlFlow;

use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Query, Statement, TableAlias, TableFactor,
    TableFunctionArgs, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::syntax::named;

const FUNCTION: &str = "foreach_window";
const WINDOW: &str = "this_window";

/// `foreach_window(t, 'q')` as `foreach_window((q), t)`, where `q` reads `this_window(t)`.
pub(super) fn rewrite(name: &ObjectName, args: &mut Vec<FunctionArg>) -> Result<()> {
    if !name.to_string().eq_ignore_ascii_case(FUNCTION) {
        return Ok(());
    }
    let [FunctionArg::Unnamed(pipeline), FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(text)))] =
        args.as_slice()
    else {
        return Ok(());
    };
    let Some(text) = text.value.clone().into_string() else { return Ok(()) };
    let mut query = query_of(&text)?;
    let call = TableFunctionArgs { args: vec![FunctionArg::Unnamed(pipeline.clone())], settings: None };
    let mut windows = Windows { call, found: false };
    let _all: ControlFlow<()> = query.visit(&mut windows);
    if !windows.found {
        return plan_err!("the query of {FUNCTION} does not read {WINDOW}");
    }
    let query = FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Subquery(Box::new(query))));
    *args = vec![query, FunctionArg::Unnamed(pipeline.clone())];
    Ok(())
}

fn query_of(text: &str) -> Result<Query> {
    let mut parsed = Parser::parse_sql(&GenericDialect {}, text)
        .map_err(|e| plan_datafusion_err!("the query of {FUNCTION} does not parse: {e}"))?;
    match (parsed.pop(), parsed.is_empty()) {
        (Some(Statement::Query(query)), true) => Ok(*query),
        _ => plan_err!("the query of {FUNCTION} is not one SELECT"),
    }
}

/// The window as an argument of a function, as `(SELECT * FROM this_window)`.
fn read_windows(argument: &mut FunctionArg) {
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) = argument else { return };
    let is_window = matches!(argument, Expr::Identifier(name) if name.value.eq_ignore_ascii_case(WINDOW));
    if is_window && let Ok(query) = query_of(&format!("SELECT * FROM {WINDOW}")) {
        *argument = Expr::Subquery(Box::new(query));
    }
}

/// Puts calls in the place of the windows of a query.
struct Windows {
    call: TableFunctionArgs,
    found: bool,
}

impl VisitorMut for Windows {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let arguments = match factor {
            TableFactor::Table { args: Some(call), .. } => &mut call.args,
            TableFactor::Function { args, .. } => args,
            _ => &mut Vec::new(),
        };
        arguments.iter_mut().for_each(read_windows);
        let TableFactor::Table { name, alias, args: None, .. } = factor else { return ControlFlow::Continue(()) };
        if !name.to_string().eq_ignore_ascii_case(WINDOW) {
            return ControlFlow::Continue(());
        }
        self.found = true;
        let called = TableAlias { explicit: true, name: Ident::new(WINDOW), columns: Vec::new(), at: None };
        let called = alias.clone().unwrap_or(called);
        let mut call = named(name.clone(), Some(self.call.clone()));
        if let TableFactor::Table { alias, .. } = &mut call {
            *alias = Some(called);
        }
        *factor = call;
        ControlFlow::Continue(())
    }
}
