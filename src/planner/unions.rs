//! UNION of tensors. DataFusion says of all rows what the last query says of its columns, so that rows of one shape
//! would have another.

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::LogicalPlan;

use crate::tensors::check_same_tensors;

/// Fails where a plan has a UNION of tensors whose shapes differ.
pub(super) fn check_unions(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Union(union) = node {
            for column in 0..union.schema.fields().len() {
                check_same_tensors(union.inputs.iter().filter_map(|input| input.schema().fields().get(column)))?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
