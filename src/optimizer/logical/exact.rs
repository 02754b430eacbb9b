//! What the rules have in common that write expressions out which DataFusion takes for others.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::logical::{columns_within, has_casts, has_node};

/// A plan with its expressions written out by `exact`, from the inside out, in nodes that have casts. Columns keep
/// their names.
pub(super) fn with_exact_casts(
    plan: LogicalPlan,
    exact: impl Fn(Expr, &DFSchema) -> Transformed<Expr>,
) -> Result<Transformed<LogicalPlan>> {
    if !has_node(&plan, has_casts) {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| {
        if !has_casts(&node) {
            return Ok(Transformed::no(node));
        }
        let schema = columns_within(&node)?;
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let exact = expr.transform_up(|expr| Ok(exact(expr, &schema)))?;
            Ok(exact.update_data(|expr| name.restore(expr)))
        })
    })
}
