//! Functions by the names that other engines have for them.
//!
//! A call stands for an expression of functions that are there, in which its arguments are put; a name alone stands for
//! another name, whatever the clauses of the call. A function of the session that has such a name comes first. Columns
//! are called as they are written:
//!
//! ```text
//! SELECT year(d), list(x ORDER BY y)    SELECT date_part('year', d) AS "year(d)", array_agg(x ORDER BY y) AS ..
//! ```

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::common::{DataFusionError, plan_datafusion_err};
use datafusion::sql::parser::{CopyToSource, Statement as DFStatement};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart,
    OrderBy, OrderByKind, Query, Select, SelectItem, SetExpr, VisitMut, VisitorMut, visit_expressions,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// Calls, and what they stand for.
const CALLS: &[(&str, &str)] = &[
    ("year(x)", "date_part('year', x)"),
    ("quarter(x)", "date_part('quarter', x)"),
    ("month(x)", "date_part('month', x)"),
    ("week(x)", "date_part('week', x)"),
    ("day(x)", "date_part('day', x)"),
    ("dayofmonth(x)", "date_part('day', x)"),
    ("dayofweek(x)", "date_part('dow', x)"),
    ("dayofyear(x)", "date_part('doy', x)"),
    ("hour(x)", "date_part('hour', x)"),
    ("minute(x)", "date_part('minute', x)"),
    ("second(x)", "date_part('second', x)"),
    ("epoch(x)", "date_part('epoch', x)"),
    ("dayname(x)", "to_char(x, '%A')"),
    ("monthname(x)", "to_char(x, '%B')"),
    ("strftime(x, f)", "to_char(x, f)"),
    ("last_day(x)", "CAST(date_trunc('month', x) + INTERVAL '1 month' - INTERVAL '1 day' AS DATE)"),
    ("date_add(x, i)", "x + i"),
    ("datediff(y, x)", "CAST(y AS DATE) - CAST(x AS DATE)"),
    ("date_diff('day', x, y)", "CAST(y AS DATE) - CAST(x AS DATE)"),
    ("date_diff('week', x, y)", "(CAST(date_trunc('week', y) AS DATE) - CAST(date_trunc('week', x) AS DATE)) / 7"),
    (
        "date_diff('month', x, y)",
        "CAST((date_part('year', y) - date_part('year', x)) * 12 + date_part('month', y) - date_part('month', x) \
         AS BIGINT)",
    ),
    (
        "date_diff('quarter', x, y)",
        "CAST((date_part('year', y) - date_part('year', x)) * 4 + date_part('quarter', y) - date_part('quarter', x) \
         AS BIGINT)",
    ),
    ("date_diff('year', x, y)", "CAST(date_part('year', y) - date_part('year', x) AS BIGINT)"),
    (
        "date_diff('hour', x, y)",
        "CAST((date_part('epoch', date_trunc('hour', CAST(y AS TIMESTAMP))) \
         - date_part('epoch', date_trunc('hour', CAST(x AS TIMESTAMP)))) / 3600 AS BIGINT)",
    ),
    (
        "date_diff('minute', x, y)",
        "CAST((date_part('epoch', date_trunc('minute', CAST(y AS TIMESTAMP))) \
         - date_part('epoch', date_trunc('minute', CAST(x AS TIMESTAMP)))) / 60 AS BIGINT)",
    ),
    (
        "date_diff('second', x, y)",
        "CAST(date_part('epoch', date_trunc('second', CAST(y AS TIMESTAMP))) \
         - date_part('epoch', date_trunc('second', CAST(x AS TIMESTAMP))) AS BIGINT)",
    ),
    ("mod(x, y)", "x % y"),
    ("if(c, x, y)", "CASE WHEN c THEN x ELSE y END"),
    ("iff(c, x, y)", "CASE WHEN c THEN x ELSE y END"),
    ("regexp_full_match(x, p)", "regexp_like(x, '^(' || p || ')$')"),
    ("regexp_extract(x, p)", "coalesce(regexp_match(x, '(' || p || ')')[1], '')"),
    ("regexp_extract(x, p, g)", "coalesce(regexp_match(x, '(' || p || ')')[g + 1], '')"),
    ("count_if(c)", "count(*) FILTER (WHERE c)"),
    ("countif(c)", "count(*) FILTER (WHERE c)"),
    ("arg_max(x, y)", "first_value(x ORDER BY y DESC) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)"),
    ("arg_min(x, y)", "first_value(x ORDER BY y) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)"),
    ("max_by(x, y)", "first_value(x ORDER BY y DESC) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)"),
    ("min_by(x, y)", "first_value(x ORDER BY y) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)"),
];

/// Names, and those that they stand for.
const NAMES: &[(&str, &str)] = &[
    ("ceiling", "ceil"),
    ("sign", "signum"),
    ("len", "character_length"),
    ("strlen", "octet_length"),
    ("ucase", "upper"),
    ("lcase", "lower"),
    ("ord", "ascii"),
    ("unicode", "ascii"),
    ("prefix", "starts_with"),
    ("suffix", "ends_with"),
    ("string_split", "string_to_array"),
    ("str_split", "string_to_array"),
    ("regexp_matches", "regexp_like"),
    ("list_value", "make_array"),
    ("list", "array_agg"),
    ("first", "first_value"),
    ("last", "last_value"),
    ("typeof", "arrow_typeof"),
];

/// Calls and names, and what they stand for.
pub(super) fn other_functions() -> impl Iterator<Item = (&'static str, &'static str)> {
    CALLS.iter().chain(NAMES).copied()
}

/// What a call stands for: its arguments by name, or literals that they have to be.
struct Meaning {
    call: &'static str,
    arguments: Vec<Expr>,
    expr: Expr,
}

static MEANINGS: LazyLock<HashMap<String, Vec<Meaning>>> = LazyLock::new(|| {
    let mut meanings: HashMap<String, Vec<Meaning>> = HashMap::new();
    for (call, expr) in CALLS {
        if let (Some(Expr::Function(function)), Some(expr)) = (parsed(call), parsed(expr)) {
            let arguments = arguments_of(&function).unwrap_or_default();
            meanings.entry(function.name.to_string()).or_default().push(Meaning { call, arguments, expr });
        }
    }
    meanings
});

/// An expression of this file. A test sees to it that all are some.
fn parsed(text: &str) -> Option<Expr> {
    Parser::new(&GenericDialect {}).try_with_sql(text).ok()?.parse_expr().ok()
}

/// Writes out calls of functions that go by other names, unless a function `is_known` by that name.
pub(super) fn rewrite(statement: &mut DFStatement, is_known: &dyn Fn(&str) -> bool) -> Result<(), DataFusionError> {
    let visitor = &mut Writer { is_known, has_changed: false };
    let flow = match statement {
        DFStatement::Statement(statement) => statement.visit(visitor),
        DFStatement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => query.visit(visitor),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        DFStatement::Explain(explain) => return rewrite(&mut explain.statement, is_known),
        DFStatement::CreateExternalTable(_) | DFStatement::Reset(_) => ControlFlow::Continue(()),
    };
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Writer<'a> {
    is_known: &'a dyn Fn(&str) -> bool,
    has_changed: bool,
}

impl VisitorMut for Writer<'_> {
    type Break = DataFusionError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        let SetExpr::Select(select) = query.body.as_mut() else { return ControlFlow::Continue(()) };
        let names = self.name_columns(select)?;
        // Rows are sorted by the column that is meant, whose expression is another one now.
        if let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &mut query.order_by {
            for key in keys {
                let written = key.expr.to_string();
                if let Some(name) = names.iter().find(|name| name.value == written) {
                    key.expr = Expr::Identifier(name.clone());
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        self.name_columns(select).map_continue(|_| ())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let Some(name) = name_of(&function.name).filter(|name| !(self.is_known)(name)) else {
            return ControlFlow::Continue(());
        };
        if let Some((_, other)) = NAMES.iter().find(|(given, _)| *given == name) {
            function.name = ObjectName(vec![ObjectNamePart::Identifier(Ident::new(*other))]);
            self.has_changed = true;
        } else if let Some(meanings) = MEANINGS.get(&name) {
            let arguments = arguments_of(function);
            let meant = arguments.and_then(|given| meanings.iter().find_map(|meaning| meaning.of(&given)));
            let Some(meant) = meant.and_then(|meant| with_clauses(meant, function)) else {
                let known: Vec<_> = meanings.iter().map(|meaning| meaning.call).collect();
                return ControlFlow::Break(plan_datafusion_err!(
                    "{function} is unknown; there is {}",
                    known.join(", ")
                ));
            };
            *expr = meant;
            self.has_changed = true;
        }
        ControlFlow::Continue(())
    }
}

impl Writer<'_> {
    /// Calls columns with such functions as they are written. Gives their names.
    fn name_columns(&self, select: &mut Select) -> ControlFlow<DataFusionError, Vec<Ident>> {
        let mut names = Vec::new();
        for item in &mut select.projection {
            let SelectItem::UnnamedExpr(expr) = item else { continue };
            if !names_other_functions(expr) {
                continue;
            }
            let mut within = Writer { is_known: self.is_known, has_changed: false };
            let written = expr.to_string();
            expr.visit(&mut within)?;
            if within.has_changed {
                let alias = Ident::with_quote('"', written);
                names.push(alias.clone());
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
        }
        ControlFlow::Continue(names)
    }
}

impl Meaning {
    /// The expression, of these arguments, if they are those of the call.
    fn of(&self, given: &[Expr]) -> Option<Expr> {
        let mut values = HashMap::new();
        if given.len() != self.arguments.len() {
            return None;
        }
        for (argument, given) in self.arguments.iter().zip(given) {
            match argument {
                Expr::Identifier(name) => {
                    values.insert(name.value.as_str(), given);
                }
                literal => {
                    let is_it = literal.to_string().eq_ignore_ascii_case(&given.to_string());
                    is_it.then_some(())?;
                }
            }
        }
        let mut expr = Expr::Nested(Box::new(self.expr.clone()));
        let _ = expr.visit(&mut Arguments(values));
        Some(match expr {
            Expr::Nested(inner) if matches!(*inner, Expr::Function(_) | Expr::Cast { .. } | Expr::Case { .. }) => {
                *inner
            }
            expr => expr,
        })
    }
}

/// Puts arguments in the place of their names.
struct Arguments<'a>(HashMap<&'a str, &'a Expr>);

impl VisitorMut for Arguments<'_> {
    type Break = ();

    // What stands there instead is not looked at again.
    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expr
            && let Some(given) = self.0.get(name.value.as_str())
        {
            *expr = match given {
                Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_) | Expr::Function(_) => {
                    (*given).clone()
                }
                given => Expr::Nested(Box::new((*given).clone())),
            };
        }
        ControlFlow::Continue(())
    }
}

/// What a call stands for, with its FILTER and OVER; none where it has clauses that this cannot have.
fn with_clauses(mut meant: Expr, call: &Function) -> Option<Expr> {
    if call.filter.is_none() && call.over.is_none() {
        return Some(meant);
    }
    let Expr::Function(function) = &mut meant else { return None };
    function.over = call.over.clone();
    if let Some(given) = &call.filter {
        function.filter = Some(match function.filter.take() {
            Some(own) => Box::new(Expr::BinaryOp {
                left: Box::new(Expr::Nested(given.clone())),
                op: BinaryOperator::And,
                right: Box::new(Expr::Nested(own)),
            }),
            None => given.clone(),
        });
    }
    Some(meant)
}

/// Whether there is a call by such a name in an expression.
fn names_other_functions(expr: &Expr) -> bool {
    let is_one = |part: &Expr| match part {
        Expr::Function(function) => name_of(&function.name)
            .is_some_and(|name| MEANINGS.contains_key(&name) || NAMES.iter().any(|(given, _)| *given == name)),
        _ => false,
    };
    let found = visit_expressions(expr, |part| match is_one(part) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// The name of a function, as it is looked up.
fn name_of(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(Ident { value, quote_style: None, .. })] => Some(value.to_ascii_lowercase()),
        _ => None,
    }
}

/// The arguments of a call, if they are expressions alone.
fn arguments_of(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    if !list.clauses.is_empty() || list.duplicate_treatment.is_some() {
        return None;
    }
    let argument = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(argument).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_meaning() {
        let known = || MEANINGS.values().flatten().map(|meaning| meaning.call);
        let missing: Vec<_> = CALLS.iter().filter(|(call, _)| !known().any(|known| known == *call)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(MEANINGS.values().flatten().all(|meaning| !meaning.arguments.is_empty()));
    }
}
