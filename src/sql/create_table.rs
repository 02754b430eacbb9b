//! `CREATE TABLE`: a table of the block store, with or without a query.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::{Constraint, Constraints, Result, exec_err, not_impl_err};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{CreateMemoryTable, DmlStatement, LogicalPlan, WriteOp};
use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::sqlparser::ast::{ColumnOption, Statement};

use crate::dataset::DataContext;
use crate::sources::StoredTable;

/// The columns that a CREATE TABLE declares NOT NULL, by their place. DataFusion forgets them where there is a query.
pub(super) fn columns_without_nulls(statement: &DFStatement) -> Vec<usize> {
    let DFStatement::Statement(statement) = statement else {
        return Vec::new();
    };
    let Statement::CreateTable(create) = statement.as_ref() else {
        return Vec::new();
    };
    let columns = create.columns.iter().enumerate();
    let without = columns.filter(|(_, c)| c.options.iter().any(|o| matches!(o.option, ColumnOption::NotNull)));
    without.map(|(index, _)| index).collect()
}

/// Creates a table, and fills it with the rows of its query before anybody sees it.
pub(super) async fn create_table(
    context: &DataContext,
    create: CreateMemoryTable,
    not_null: &[usize],
    text: &str,
) -> Result<()> {
    let CreateMemoryTable { name, input, if_not_exists, or_replace, constraints, column_defaults, temporary } = create;
    if temporary {
        return not_impl_err!("TEMPORARY tables; every table of CREATE TABLE is gone when the session ends");
    }
    let session = context.session();
    let exists = session.table_exist(name.clone())?;
    match (exists, if_not_exists, or_replace) {
        (_, true, true) => return exec_err!("IF NOT EXISTS and OR REPLACE exclude each other"),
        (true, true, false) => return Ok(()),
        (true, false, false) => return exec_err!("table '{name}' already exists"),
        _ => {}
    }
    let schema = columns(input.schema().as_arrow(), &constraints, not_null);
    let defaults = column_defaults.into_iter().collect();
    let table = StoredTable::try_new(name.table(), schema, constraints, defaults)?;
    if !matches!(input.as_ref(), LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row) {
        let target = provider_as_source(Arc::new(table.clone()));
        let insert = DmlStatement::new(name.clone(), target, WriteOp::Insert(InsertOp::Append), input);
        context.dataset(LogicalPlan::Dml(insert)).said_by(text).take_all().await?;
    }
    if exists {
        session.deregister_table(name.clone())?;
    }
    session.register_table(name, Arc::new(table) as Arc<dyn TableProvider>)?;
    Ok(())
}

/// Columns take nulls unless they are declared not to, whatever rows the query of the table happens to give.
fn columns(schema: &Schema, constraints: &Constraints, not_null: &[usize]) -> SchemaRef {
    let keys: Vec<usize> = constraints
        .iter()
        .flat_map(|constraint| match constraint {
            Constraint::PrimaryKey(indices) => indices.clone(),
            Constraint::Unique(_) => Vec::new(),
        })
        .collect();
    let fields = schema.fields().iter().enumerate().map(|(index, field)| {
        let nullable = !not_null.contains(&index) && !keys.contains(&index);
        field.as_ref().clone().with_nullable(nullable)
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<Field>>(), schema.metadata().clone()))
}
