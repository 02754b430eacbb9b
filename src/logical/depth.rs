//! How many operators of a plan stand above each other.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::LogicalPlan;

/// Operators of a plan above each other: what optimizing takes grows with the third power of it.
const MAX_PLAN_DEPTH: usize = 500;

/// An error for a plan whose operators stand above each other in such numbers that optimizing it takes minutes.
pub(crate) fn check_plan_depth(plan: &LogicalPlan) -> Result<()> {
    let mut nodes = vec![(plan, 0)];
    while let Some((node, above)) = nodes.pop() {
        // Names cost little, and unions of many become one.
        let depth = above + usize::from(!matches!(node, LogicalPlan::SubqueryAlias(_) | LogicalPlan::Union(_)));
        if depth > MAX_PLAN_DEPTH {
            return plan_err!(
                "the plan has more than {MAX_PLAN_DEPTH} operators above each other, as many views on views have; keep a result \
                 in between with CREATE TABLE .. AS, or materialize"
            );
        }
        nodes.extend(node.inputs().into_iter().map(|input| (input, depth)));
    }
    Ok(())
}
