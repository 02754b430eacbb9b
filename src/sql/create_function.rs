//! `CREATE [OR REPLACE] FUNCTION name() LANGUAGE language AS 'body' [SET batch_size = 1024 ..]`, and `DROP FUNCTION`.

use datafusion::common::{Result, plan_err};
use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::sqlparser::ast::{
    CreateFunction, CreateFunctionBody, DropFunction, Expr, FunctionArg, FunctionArgExpr, FunctionArgOperator,
    FunctionSetValue, Ident, ObjectName, Statement,
};

use super::arguments;
use crate::call::{Arguments, Tables};
use crate::error::unknown_name;
use crate::functions::FunctionRegistry;
use crate::logical::MapBatchesArguments;

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
    let Some(CreateFunctionBody::AsBeforeOptions { body, .. } | CreateFunctionBody::AsAfterOptions(body)) =
        function_body
    else {
        return plan_err!("CREATE FUNCTION {name}() needs a body: AS '..'");
    };
    let argument = |name: &str, value: Expr| FunctionArg::Named {
        name: Ident::new(name),
        arg: FunctionArgExpr::Expr(value),
        operator: FunctionArgOperator::RightArrow,
    };
    let mut arguments = vec![argument("function", body.clone())];
    for param in set_params {
        let value = match &param.value {
            FunctionSetValue::Values(values) => match values.as_slice() {
                [value] => value.clone(),
                several => Expr::Tuple(several.to_vec()),
            },
            FunctionSetValue::Default | FunctionSetValue::FromCurrent => continue,
        };
        arguments.push(argument(&param.name.to_string(), value));
    }
    // The body is what a call gives as the function, and the options are defaults for calls that do not say otherwise.
    let parameters = MapBatchesArguments::parameters();
    let (_, values) = arguments::parse("CREATE FUNCTION", Tables::None, &parameters, arguments)?;
    let MapBatchesArguments { function: body, options } = MapBatchesArguments::from_values(&values)?;
    options.failures()?;
    functions.create(&last_of(name), &language.value, &body, options, *or_replace)?;
    Ok(true)
}

/// Drops the functions that [`create_function`] has made. Others are DataFusion's.
pub(super) fn drop_function(statement: &DFStatement, functions: &FunctionRegistry) -> Result<bool> {
    let DFStatement::Statement(statement) = statement else {
        return Ok(false);
    };
    let Statement::DropFunction(DropFunction { func_desc, .. }) = statement.as_ref() else {
        return Ok(false);
    };
    let names: Vec<String> = func_desc.iter().map(|function| last_of(&function.name)).collect();
    if !names.iter().any(|name| functions.get(name).is_ok()) {
        return Ok(false);
    }
    for name in names {
        if !functions.remove_created(&name)? {
            return Err(unknown_name("function", &name, "DROP FUNCTION", &[]));
        }
    }
    Ok(true)
}

fn last_of(name: &ObjectName) -> String {
    name.0.last().map_or_else(String::new, |part| match part.as_ident() {
        Some(ident) => ident.value.clone(),
        None => part.to_string(),
    })
}
