//! Columns with their types as `CREATE TABLE` writes them: `a double, "b c" decimal(10, 2)`.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, plan_datafusion_err, plan_err};
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::sql::sqlparser::ast::{self, Statement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

/// The columns that a text lists.
pub(super) fn column_types(text: &str, context: &mut dyn RelationPlannerContext) -> Result<Vec<(String, DataType)>> {
    let parsed = Parser::parse_sql(&GenericDialect {}, &format!("CREATE TABLE t ({text})"));
    let wrong = |e| plan_datafusion_err!("argument 'types' must be like 'a double, b varchar', got '{text}': {e}");
    let mut statements = parsed.map_err(wrong)?;
    let Some(Statement::CreateTable(table)) = statements.pop().filter(|_| statements.is_empty()) else {
        return plan_err!("argument 'types' must be like 'a double, b varchar', got '{text}'");
    };
    let mut types = Vec::new();
    for column in table.columns {
        // DataFusion has no other way in for the type alone.
        let null = ast::Expr::Cast {
            kind: ast::CastKind::Cast,
            expr: Box::new(ast::Expr::Value(ast::Value::Null.into())),
            data_type: column.data_type,
            array: false,
            format: None,
        };
        let null: Expr = context.sql_to_expr(null, &DFSchema::empty())?;
        types.push((context.normalize_ident(column.name), null.get_type(&DFSchema::empty())?));
    }
    Ok(types)
}
