//! `CREATE [OR REPLACE] FUNCTION name() LANGUAGE language AS 'body' [SET batch_size = 1024 ..]`.

use datafusion::common::{Result, plan_err};
use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::sqlparser::ast::{
    CreateFunction, CreateFunctionBody, Expr, FunctionArg, FunctionArgExpr, FunctionArgOperator, FunctionSetValue,
    Ident, Statement, Value,
};

use super::arguments::Arguments;
use super::relations::map_options;
use super::signatures::FUNCTION_DEFAULTS;
use crate::functions::{FunctionRegistry, MapOptions};

/// Creates the function if the statement is for one of our languages. Others are DataFusion's.
pub(super) fn create_function(statement: &DFStatement, functions: &FunctionRegistry) -> Result<bool> {
    let DFStatement::Statement(statement) = statement else {
        return Ok(false);
    };
    let Statement::CreateFunction(CreateFunction {
        name, language, args, function_body, set_params, or_replace, ..
    }) = statement.as_ref()
    else {
        return Ok(false);
    };
    let Some(language) = language.as_ref().filter(|language| functions.has_language(&language.value)) else {
        return Ok(false);
    };
    if args.as_ref().is_some_and(|args| !args.is_empty()) {
        return plan_err!("functions over batches take whole rows: write CREATE FUNCTION {name}() without arguments");
    }
    let body = match function_body {
        Some(CreateFunctionBody::AsBeforeOptions { body, .. } | CreateFunctionBody::AsAfterOptions(body)) => text(body),
        _ => None,
    };
    let Some(body) = body else {
        return plan_err!("CREATE FUNCTION {name}() needs a body: AS '..'");
    };
    let mut arguments = Vec::new();
    for param in set_params {
        let value = match &param.value {
            FunctionSetValue::Values(values) => match values.as_slice() {
                [value] => value.clone(),
                several => Expr::Tuple(several.to_vec()),
            },
            FunctionSetValue::Default | FunctionSetValue::FromCurrent => continue,
        };
        arguments.push(FunctionArg::Named {
            name: Ident::new(param.name.to_string()),
            arg: FunctionArgExpr::Expr(value),
            operator: FunctionArgOperator::RightArrow,
        });
    }
    let defaults = map_options(&Arguments::parse(&FUNCTION_DEFAULTS, arguments)?, MapOptions::default())?;
    let name = name.0.last().map_or_else(String::new, |part| match part.as_ident() {
        Some(ident) => ident.value.clone(),
        None => part.to_string(),
    });
    functions.create(&name, &language.value, &body, defaults, *or_replace)?;
    Ok(true)
}

fn text(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.clone()),
            Value::DollarQuotedString(text) => Some(text.value.clone()),
            _ => None,
        },
        _ => None,
    }
}
