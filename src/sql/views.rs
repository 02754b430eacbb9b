//! Views mean the tables that have their names now. DataFusion keeps the tables that a view was made of, so a view is
//! planned anew when one of its names comes to mean something else.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::datasource::{TableType, ViewTable};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{DdlStatement, Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement as DFStatement;
use datafusion::sql::resolve::resolve_table_references;
use datafusion::sql::sqlparser::ast::Statement as AstStatement;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::statement::SqlStatement;
use crate::boxed::scan_by;
use crate::dataset::DataContext;
use crate::error::one_message;

/// The name that a statement gives another meaning, or none.
pub(super) fn redefined(statement: &DdlStatement) -> Option<TableReference> {
    match statement {
        DdlStatement::CreateMemoryTable(create) => Some(create.name.clone()),
        DdlStatement::CreateExternalTable(create) => Some(create.name.clone()),
        DdlStatement::CreateView(create) => Some(create.name.clone()),
        DdlStatement::DropTable(drop) => Some(drop.name.clone()),
        DdlStatement::DropView(drop) => Some(drop.name.clone()),
        _ => None,
    }
}

/// A view, by its full name.
struct View {
    name: String,
    reference: TableReference,
    schema: SchemaRef,
    definition: String,
    statement: SqlStatement,
    /// The tables and views that it is made of, by their full names.
    reads: BTreeSet<String>,
}

/// Plans those views anew that are made of `changed`, and those that are made of them.
pub(super) async fn refresh_views(context: &DataContext, changed: TableReference) -> Result<()> {
    let state = context.state();
    let mut redefined = BTreeSet::from([full_name(&state, &changed)]);
    let mut others = views(context, &state).await?;
    let mut made_of_it = Vec::new();
    loop {
        let (found, left): (Vec<View>, Vec<View>) = others.into_iter().partition(|view| {
            // What a view of its own name was made of is not known any more.
            !view.reads.contains(&view.name) && !view.reads.is_disjoint(&redefined)
        });
        others = left;
        if found.is_empty() {
            break;
        }
        redefined.extend(found.iter().map(|view| view.name.clone()));
        made_of_it.extend(found);
    }
    // Each after those that it is made of.
    while !made_of_it.is_empty() {
        let waiting: BTreeSet<String> = made_of_it.iter().map(|view| view.name.clone()).collect();
        let next = made_of_it.iter().position(|view| view.reads.is_disjoint(&waiting)).unwrap_or(0);
        let view = made_of_it.swap_remove(next);
        refresh(context, view).await?;
    }
    Ok(())
}

async fn refresh(context: &DataContext, view: View) -> Result<()> {
    let View { reference, schema, definition, statement, .. } = view;
    let session = context.session();
    let planned = match context.planned(statement).await {
        Ok(LogicalPlan::Ddl(DdlStatement::CreateView(create))) => Ok(Arc::unwrap_or_clone(create.input)),
        Ok(_) => return Ok(()),
        Err(e) => Err(one_message(&e)),
    };
    let table: Arc<dyn TableProvider> = match planned {
        Ok(plan) => Arc::new(ViewTable::new(plan, Some(definition))),
        Err(error) => Arc::new(BrokenView { name: reference.to_string(), schema, definition, error }),
    };
    session.deregister_table(reference.clone())?;
    session.register_table(reference, table)?;
    Ok(())
}

/// The views that statements have made.
async fn views(context: &DataContext, state: &SessionState) -> Result<Vec<View>> {
    let default = &state.config_options().catalog.default_catalog;
    let Some(catalog) = context.session().catalog(default) else { return Ok(Vec::new()) };
    let mut views = Vec::new();
    for schema_name in catalog.schema_names() {
        let Some(schema) = catalog.schema(&schema_name) else { continue };
        for table_name in schema.table_names() {
            let Some(table) = schema.table(&table_name).await? else { continue };
            let Some(definition) = table.get_table_definition().filter(|_| table.table_type() == TableType::View)
            else {
                continue;
            };
            let Some(statement) = context.parse(definition).ok().and_then(|mut statements| statements.pop()) else {
                continue;
            };
            let reference = TableReference::full(default.as_str(), schema_name.as_str(), table_name.as_str());
            let DFStatement::Statement(create) = &statement.statement else { continue };
            let AstStatement::CreateView(create) = create.as_ref() else { continue };
            let query = DFStatement::Statement(Box::new(AstStatement::Query(create.query.clone())));
            let (tables, _of_the_query) = resolve_table_references(&query, true)?;
            let (name, reads) =
                (full_name(state, &reference), tables.iter().map(|table| full_name(state, table)).collect());
            let (schema, definition) = (table.schema(), definition.to_owned());
            views.push(View { name, reference, schema, definition, statement, reads });
        }
    }
    Ok(views)
}

fn full_name(state: &SessionState, reference: &TableReference) -> String {
    let catalog = &state.config_options().catalog;
    reference.clone().resolve(&catalog.default_catalog, &catalog.default_schema).to_string()
}

/// A view that cannot be planned any more.
#[derive(Debug)]
struct BrokenView {
    name: String,
    /// The columns that it had.
    schema: SchemaRef,
    definition: String,
    error: String,
}

impl BrokenView {
    fn refuse<'a>(
        &'a self,
        _session: &'a dyn Session,
        _projection: Option<&'a Vec<usize>>,
        _filters: &'a [Expr],
        _limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        let refused = plan_err!("the view '{}' cannot be planned any more: {}", self.name, self.error);
        std::future::ready(refused).boxed()
    }
}

impl TableProvider for BrokenView {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn get_table_definition(&self) -> Option<&str> {
        Some(&self.definition)
    }

    scan_by!(Self::refuse);
}
