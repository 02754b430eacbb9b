//! Joins with another condition beside their keys.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};

/// A join whose condition is what `change` makes of it; none if the node is another one, or nothing changes.
pub(super) fn with_condition(
    node: &Arc<dyn ExecutionPlan>,
    change: impl FnOnce(&Arc<dyn PhysicalExpr>, &Schema) -> Result<Arc<dyn PhysicalExpr>>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let Some(filter) = changed(join.filter(), change)? else { return Ok(None) };
        return join.builder().with_filter(Some(filter)).build_exec().map(Some);
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let Some(filter) = changed(join.filter(), change)? else { return Ok(None) };
        let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let changed = NestedLoopJoinExec::try_new(left, right, Some(filter), join.join_type(), projection)?;
        return Ok(Some(Arc::new(changed)));
    }
    Ok(None)
}

fn changed(
    filter: Option<&JoinFilter>,
    change: impl FnOnce(&Arc<dyn PhysicalExpr>, &Schema) -> Result<Arc<dyn PhysicalExpr>>,
) -> Result<Option<JoinFilter>> {
    let Some(filter) = filter else { return Ok(None) };
    let expression = change(filter.expression(), filter.schema())?;
    if Arc::ptr_eq(filter.expression(), &expression) {
        return Ok(None);
    }
    Ok(Some(JoinFilter::new(expression, filter.column_indices().to_vec(), Arc::clone(filter.schema()))))
}
