//! Messages for names that are not there: what was meant, or what SQL has for it.

use datafusion::common::{DataFusionError, Result, plan_datafusion_err};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, ObjectName};

use crate::call::{TableFunctions, extension_of};
use crate::error::{nearest, without_bug_report};
use crate::sources::format_of_path;

/// What SQL has for the operations of datasets that are no table functions.
const IN_SQL: &[(&[&str], &str)] = &[
    (&["sort", "order_by", "sort_by"], "ORDER BY"),
    (&["filter", "where"], "WHERE"),
    (&["limit", "take", "head"], "LIMIT"),
    (&["select", "select_columns", "drop_columns", "add_column", "with_column", "rename_columns"], "SELECT"),
    (&["union", "concat"], "UNION ALL"),
    (&["join"], "JOIN"),
    (&["groupby", "group_by", "aggregate"], "GROUP BY, or map_groups(t, 'function', keys)"),
    (&["unique", "distinct"], "SELECT DISTINCT"),
    (&["sample", "random_sample"], "FROM t TABLESAMPLE BERNOULLI (10)"),
    (&["map", "flat_map", "map_rows"], "SELECT with expressions, or map_batches(t, 'function')"),
    (&["materialize"], "CREATE TABLE .. AS"),
    (&["write_parquet", "write_csv", "write_json"], "COPY .. TO"),
];

/// The error of a statement, with what would help.
pub(super) fn with_advice(error: DataFusionError, state: &SessionState) -> DataFusionError {
    let error = without_bug_report(error);
    let DataFusionError::Plan(text) = error.find_root() else {
        return error;
    };
    let quoted = |before: &str, after: &str| {
        let (name, rest) = text.strip_prefix(before)?.split_once('\'')?;
        rest.starts_with(after).then(|| name.to_owned())
    };
    let Ok(functions) = extension_of::<TableFunctions>(state) else {
        return error;
    };
    if let Some(name) = quoted("table function '", " not found") {
        return unknown_table_function(&name, state.table_functions().keys().cloned().collect(), &functions);
    }
    if let Some(name) = quoted("Invalid function '", "").filter(|name| functions.find(name).is_some()) {
        return plan_datafusion_err!("'{name}' gives a table, which stands in FROM: SELECT * FROM {name}(..)");
    }
    match quoted("table '", " not found") {
        Some(name) => unknown_table(&name, state),
        None => error,
    }
}

/// An error where an unknown table function is called with one of ours: DataFusion looks at its arguments first, in
/// which it knows no table functions.
pub(super) fn check_outer_call(
    name: &ObjectName,
    arguments: &[FunctionArg],
    context: &dyn RelationPlannerContext,
    functions: &TableFunctions,
) -> Result<()> {
    let is_ours = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Function(call))) => {
            functions.find(&call.name.to_string()).is_some()
        }
        _ => false,
    };
    let [part] = name.0.as_slice() else {
        return Ok(());
    };
    let Some(ident) = part.as_ident().filter(|_| arguments.iter().any(is_ours)) else {
        return Ok(());
    };
    let name = ident.value.to_lowercase();
    match context.context_provider().get_table_function_source(&name, Vec::new()) {
        Err(e) if e.message().starts_with(&format!("table function '{name}' not found")) => {
            Err(unknown_table_function(&name, Vec::new(), functions))
        }
        _ => Ok(()),
    }
}

fn unknown_table_function(name: &str, others: Vec<String>, functions: &TableFunctions) -> DataFusionError {
    let lower = name.to_lowercase();
    if let Some((_, words)) = IN_SQL.iter().find(|(names, _)| names.contains(&lower.as_str())) {
        return plan_datafusion_err!("table function '{name}' not found; SQL has {words} for it");
    }
    let mut names = others;
    names.extend(functions.names().into_iter().map(str::to_owned));
    names.sort_unstable();
    names.dedup();
    let hint =
        nearest(name, names.iter().map(String::as_str)).map_or(String::new(), |n| format!(" Did you mean '{n}'?"));
    plan_datafusion_err!("table function '{name}' not found.{hint} There are: {}", names.join(", "))
}

/// `name` has the catalog and the schema in front.
fn unknown_table(name: &str, state: &SessionState) -> DataFusionError {
    let mut parts = name.splitn(3, '.').skip(1);
    let (schema, table) = (parts.next().unwrap_or_default(), parts.next().unwrap_or(name));
    let path = format!("{schema}.{table}");
    if format_of_path(&path).is_some() {
        return plan_datafusion_err!("table '{name}' not found; the path of a file is in quotes: FROM '{path}'");
    }
    let options = &state.config_options().catalog;
    let mut known = Vec::new();
    if let Some(catalog) = state.catalog_list().catalog(&options.default_catalog) {
        for schema in catalog.schema_names() {
            let tables = catalog.schema(&schema).map(|s| s.table_names()).unwrap_or_default();
            let is_default = schema == options.default_schema;
            let shown = |table: String| if is_default { table } else { format!("{schema}.{table}") };
            known.extend(tables.into_iter().map(shown));
        }
    }
    // A name with its schema is compared with such names, and a bare one with both.
    let with_schema = known.iter().filter(|known| known.contains('.')).map(String::as_str);
    let near = match schema == options.default_schema {
        true => nearest(table, known.iter().map(String::as_str)),
        false => nearest(&path, with_schema),
    };
    match near {
        Some(near) => plan_datafusion_err!("table '{name}' not found. Did you mean '{near}'?"),
        None => plan_datafusion_err!("table '{name}' not found"),
    }
}
