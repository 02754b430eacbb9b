//! Columns with their types as `CREATE TABLE` writes them: `a double, "b c" decimal(10, 2)`.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue, plan_datafusion_err, plan_err};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{ExprSchemable, cast, lit};
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::{self, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::unparser::Unparser;

use crate::call::{Argument, Value, shown};

impl Argument for Vec<(String, DataType)> {
    const WHAT: &'static str = "like 'a double, b varchar'";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        value.text().map(column_types).transpose()
    }

    fn to_value(&self) -> Result<Value> {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let types = self.iter().map(|(name, kind)| Ok(format!("{} {}", quoted(name), sql_type(kind)?)));
        Ok(shown(&types.collect::<Result<Vec<_>>>()?.join(", ")))
    }
}

/// The columns that a text lists. Names without quotes are in lower case.
fn column_types(text: &str) -> Result<Vec<(String, DataType)>> {
    let parsed = Parser::parse_sql(&GenericDialect {}, &format!("CREATE TABLE t ({text})"));
    let wrong = |e| plan_datafusion_err!("argument 'types' must be like 'a double, b varchar', got '{text}': {e}");
    let mut statements = parsed.map_err(wrong)?;
    let Some(Statement::CreateTable(table)) = statements.pop().filter(|_| statements.is_empty()) else {
        return plan_err!("argument 'types' must be like 'a double, b varchar', got '{text}'");
    };
    let planner = planner();
    let mut types = Vec::new();
    for ast::ColumnDef { name, data_type, .. } in table.columns {
        let name = if name.quote_style.is_some() { name.value } else { name.value.to_lowercase() };
        // DataFusion has no other way in for the type alone.
        let null = planner.create_logical_expr(&format!("CAST(NULL AS {data_type})"), &DFSchema::empty())?;
        types.push((name, null.get_type(&DFSchema::empty())?));
    }
    Ok(types)
}

/// What plans a type. Strings are plain: a slice of views keeps all of its buffers.
fn planner() -> SessionState {
    let mut config = SessionConfig::new();
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    // As `CREATE EXTERNAL TABLE` has it.
    config.options_mut().execution.time_zone = Some("UTC".to_owned());
    SessionStateBuilder::new().with_config(config).build()
}

/// A type as SQL writes it.
fn sql_type(kind: &DataType) -> Result<String> {
    match Unparser::default().expr_to_sql(&cast(lit(ScalarValue::Null), kind.clone()))? {
        ast::Expr::Cast { data_type, .. } => Ok(data_type.to_string()),
        other => Ok(other.to_string()),
    }
}
