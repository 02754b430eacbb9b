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
    let mut others = views(context, &state, &changed).await?;
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

/// The text of a view that a statement has made.
struct Defined {
    reference: TableReference,
    schema: SchemaRef,
    definition: String,
}

/// The views that may be made of `changed`, or of those that may: whose text has such a name.
async fn views(context: &DataContext, state: &SessionState, changed: &TableReference) -> Result<Vec<View>> {
    let mut others = defined(context, state).await?;
    let (mut names, mut views) = (vec![changed.table().to_lowercase()], Vec::new());
    while let Some(name) = names.pop() {
        // A quote within a name is written twice.
        let may_have = |text: &str| name.contains('"') || text.to_lowercase().contains(&name);
        let (found, left) = others.into_iter().partition(|view: &Defined| may_have(&view.definition));
        others = left;
        for view in found {
            names.push(view.reference.table().to_lowercase());
            views.extend(parsed(context, state, view)?);
        }
    }
    Ok(views)
}

/// A view with what its text says; none where the text is not that of a view.
fn parsed(context: &DataContext, state: &SessionState, defined: Defined) -> Result<Option<View>> {
    let Defined { reference, schema, definition } = defined;
    let Some(statement) = context.parse(&definition).ok().and_then(|mut statements| statements.pop()) else {
        return Ok(None);
    };
    let DFStatement::Statement(create) = &statement.statement else { return Ok(None) };
    let AstStatement::CreateView(create) = create.as_ref() else { return Ok(None) };
    let query = DFStatement::Statement(Box::new(AstStatement::Query(create.query.clone())));
    let (tables, _of_the_query) = resolve_table_references(&query, true)?;
    let reads = tables.iter().map(|table| full_name(state, table)).collect();
    let name = full_name(state, &reference);
    Ok(Some(View { name, reference, schema, definition, statement, reads }))
}

/// The texts of the views of the session.
async fn defined(context: &DataContext, state: &SessionState) -> Result<Vec<Defined>> {
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
            let reference = TableReference::full(default.as_str(), schema_name.as_str(), table_name.as_str());
            views.push(Defined { reference, schema: table.schema(), definition: definition.to_owned() });
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
