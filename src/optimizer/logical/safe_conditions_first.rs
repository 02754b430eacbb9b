//! Conditions that may fail stand behind those that cannot.
//!
//! DataFusion changes the order of conditions when it pushes them down, and computes for all rows, below the filter,
//! what the first condition has in common with others. What stands behind the first is not computed for all:
//!
//! ```text
//! Filter: CAST(v AS Int32) >= 2 AND CAST(v AS Int32) <= 99 AND v LIKE '1%'
//!   ->  Filter: v LIKE '1%' AND CAST(v AS Int32) >= 2 AND CAST(v AS Int32) <= 99
//! ```
//!
//! How they keep others from failing is seen to when the plan is made (`planner/guards.rs`). Where anything is
//! volatile, nothing moves.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical::{may_exceed, may_fail};

#[derive(Debug)]
pub(super) struct SafeConditionsFirst;

impl OptimizerRule for SafeConditionsFirst {
    fn name(&self) -> &str {
        "safe_conditions_first"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(mut filter) = plan else { return Ok(Transformed::no(plan)) };
        let schema = filter.input.schema();
        let conditions = split_conjunction(&filter.predicate);
        let place = |condition: &Expr| (may_fail(condition, schema), may_exceed(condition, schema));
        if conditions.is_sorted_by_key(|condition| place(condition))
            || conditions.iter().any(|condition| condition.is_volatile())
        {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        }
        let mut conditions: Vec<Expr> = split_conjunction_owned(std::mem::take(&mut filter.predicate));
        conditions.sort_by_cached_key(place);
        filter.predicate = conjunction(conditions).unwrap_or_default();
        Ok(Transformed::yes(LogicalPlan::Filter(filter)))
    }
}
