//! Arguments of table functions in SQL: values that are written out in the statement, sorted to the names of a
//! function.

use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, UnaryOperator, Value as Literal};

use crate::call::{Parameter, Tables, Value, Values};
use crate::error::unknown_name;

/// The tables and the values of a call of `owner`. Unknown names, what is no literal, and missing or doubled arguments
/// are errors that say what is accepted.
pub(super) fn parse(
    owner: &str,
    tables: Tables,
    parameters: &[Parameter],
    args: Vec<FunctionArg>,
) -> Result<(Vec<Expr>, Values)> {
    let mut given = Vec::new();
    let mut values = Values::new(owner);
    let mut position = 0;
    let names = || parameters.iter().map(|parameter| parameter.name).collect::<Vec<_>>();
    for arg in args {
        let (name, value) = match arg {
            FunctionArg::Named { name, arg, .. } => (Some(name.value), arg),
            FunctionArg::ExprNamed { name: Expr::Identifier(name), arg, .. } => (Some(name.value), arg),
            FunctionArg::ExprNamed { name, .. } => return plan_err!("{name} is not the name of an argument"),
            FunctionArg::Unnamed(arg) => (None, arg),
        };
        let FunctionArgExpr::Expr(value) = value else {
            return plan_err!("{owner} does not take {value}");
        };
        let index = match name {
            Some(name) => parameters
                .iter()
                .position(|parameter| parameter.name.eq_ignore_ascii_case(&name))
                .ok_or_else(|| unknown_name("argument", &name, owner, &names()))?,
            None if given.len() < tables.max() => {
                given.push(value);
                continue;
            }
            None => {
                position += 1;
                position - 1
            }
        };
        let Some(Parameter { name, what, .. }) = parameters.get(index) else {
            let names = [vec!["table"; tables.min()], names()].concat();
            return plan_err!("{owner} takes at most {} arguments: {}", names.len(), names.join(", "));
        };
        let Some(literal) = literal(&value) else {
            return plan_err!("argument '{name}' of {owner} must be {what}, got {value}");
        };
        if values.put(name, literal).is_some() {
            return plan_err!("argument '{name}' of {owner} is given twice");
        }
    }
    if given.len() < tables.min() {
        let or_more = if tables == Tables::Several { " or more" } else { "" };
        return plan_err!("{owner} needs {}{or_more} table argument(s), got {}", tables.min(), given.len());
    }
    Ok((given, values))
}

fn literal(expression: &Expr) -> Option<Value> {
    let list = |items: &[Expr]| items.iter().map(literal).collect::<Option<Vec<_>>>().map(Value::List);
    match expression {
        Expr::Value(value) => match &value.value {
            Literal::Number(digits, _) => Some(Value::Number(digits.clone())),
            Literal::SingleQuotedString(text) | Literal::DoubleQuotedString(text) => Some(Value::Text(text.clone())),
            Literal::Boolean(flag) => Some(Value::Flag(*flag)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match literal(expr)? {
            Value::Number(digits) => Some(Value::Number(format!("-{digits}"))),
            Value::Text(_) | Value::Flag(_) | Value::List(_) => None,
        },
        Expr::Tuple(items) => list(items),
        Expr::Array(array) => list(&array.elem),
        Expr::Nested(inner) => literal(inner),
        _ => None,
    }
}
