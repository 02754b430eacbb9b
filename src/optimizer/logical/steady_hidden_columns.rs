//! Puts columns that rows are sorted by, but which are not selected, into one order.
//!
//! DataFusion takes them from a set, so that a query has another plan each time it is planned. Executors then know
//! nothing of its stages, and what compares plans takes them for others.
//!
//! ```text
//! Projection: id                          Projection: id
//!   Sort: s || t                   ->       Sort: s || t
//!     Projection: id, t, s                    Projection: id, s, t
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Sort};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

#[derive(Debug)]
pub(super) struct SteadyHiddenColumns;

impl OptimizerRule for SteadyHiddenColumns {
    fn name(&self) -> &str {
        "steady_hidden_columns"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        Ok(match steady(&plan)? {
            Some(steady) => Transformed::yes(steady),
            None => Transformed::no(plan),
        })
    }
}

/// The same plan with the columns in order that only its sort uses, if they are in another one.
fn steady(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Projection(selected) = plan else { return Ok(None) };
    let LogicalPlan::Sort(sort) = selected.input.as_ref() else { return Ok(None) };
    let LogicalPlan::Projection(all) = sort.input.as_ref() else { return Ok(None) };
    let Some((shown, hidden)) = all.expr.split_at_checked(selected.expr.len()) else { return Ok(None) };
    let selects_columns = selected.expr.iter().all(|expr| matches!(expr, Expr::Column(_)));
    let name = |expr: &Expr| expr.schema_name().to_string();
    if !selects_columns || !hidden.iter().all(|expr| matches!(expr, Expr::Column(_))) || hidden.is_sorted_by_key(name) {
        return Ok(None);
    }
    let mut hidden = hidden.to_vec();
    hidden.sort_by_cached_key(name);
    let all = Projection::try_new([shown, &hidden].concat(), Arc::clone(&all.input))?;
    let input = Arc::new(LogicalPlan::Projection(all));
    let sort = LogicalPlan::Sort(Sort { input, ..sort.clone() });
    Ok(Some(LogicalPlan::Projection(Projection::try_new(selected.expr.clone(), Arc::new(sort))?)))
}
