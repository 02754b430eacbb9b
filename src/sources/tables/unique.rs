//! Whether rows comply with PRIMARY KEY and UNIQUE. DataFusion relies on both, and checks neither.

use std::sync::Arc;

use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::catalog::TableProvider;
use datafusion::common::{Column, Constraint, Result, exec_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::SessionState;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, lit};
use datafusion::physical_plan::execute_stream;
use futures::TryStreamExt;

use super::stored::{StoredTable, frozen};
use crate::store::BlockHandle;

/// An error if `blocks` as the contents of `table` would break one of its rules.
pub(super) async fn check_unique(
    table: &StoredTable,
    blocks: &[BlockHandle],
    state: &SessionState,
    context: &Arc<TaskContext>,
) -> Result<()> {
    let schema = table.schema();
    for rule in table.rules().iter() {
        let (rule, indices) = match rule {
            Constraint::PrimaryKey(indices) => ("PRIMARY KEY", indices),
            Constraint::Unique(indices) => ("UNIQUE", indices),
        };
        let names: Vec<&str> = indices.iter().map(|i| schema.field(*i).name().as_str()).collect();
        let columns: Vec<Expr> = names.iter().map(|name| Expr::Column(Column::from_name(*name))).collect();
        // A key with a null is like no other.
        let whole = columns.iter().cloned().map(Expr::is_not_null).reduce(Expr::and).unwrap_or_else(|| lit(true));
        let rows = provider_as_source(Arc::new(frozen(table.schema(), blocks)));
        let plan = LogicalPlanBuilder::scan("rows", rows, None)?
            .filter(whole)?
            .aggregate(columns.clone(), vec![count(lit(1)).alias("times")])?
            .filter(Expr::Column(Column::from_name("times")).gt(lit(1)))?
            .project(columns)?
            .limit(0, Some(1))?
            .build()?;
        let plan = state.create_physical_plan(&plan).await?;
        let mut twice = execute_stream(plan, Arc::clone(context))?;
        while let Some(batch) = twice.try_next().await? {
            if batch.num_rows() == 0 {
                continue;
            }
            let options = FormatOptions::default();
            let values = batch.columns().iter().map(|c| Ok(ArrayFormatter::try_new(c, &options)?.value(0).to_string()));
            return exec_err!(
                "{rule} ({}) of table '{}' does not allow two rows with ({})",
                names.join(", "),
                table.name(),
                values.collect::<Result<Vec<_>>>()?.join(", ")
            );
        }
    }
    Ok(())
}
