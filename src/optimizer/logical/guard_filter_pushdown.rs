//! Keeps predicates without columns, and volatile ones, above our nodes and above aggregates that give a row for none.
//!
//! DataFusion pushes such predicates (`random() < 0.5`) below any extension node and into each of its inputs, whatever
//! columns the node protects: both sides of a zip would lose other rows, and a function would see other batches. Below
//! an aggregate without keys, `1 = 2` makes `count(*)` 0, where there is to be no row. This rule stands in place of
//! DataFusion's `push_down_filter`, which it calls for everything else.
//!
//! ```text
//! Filter: random() < 0.5 AND b > 1        Filter: random() < 0.5
//!   RandomShuffle                  ->       RandomShuffle
//!     Scan                                    Filter: b > 1
//!                                               Scan
//! ```

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, GroupingSet, LogicalPlan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::simplify_expressions::simplify_predicates;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use std::sync::Arc;

use crate::logical::is_ours;

#[derive(Debug)]
pub(super) struct GuardFilterPushdown(PushDownFilter);

impl GuardFilterPushdown {
    pub(super) fn new() -> Self {
        Self(PushDownFilter::new())
    }
}

impl OptimizerRule for GuardFilterPushdown {
    fn name(&self) -> &str {
        "push_down_filter"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let Some(filter) = over_guarded(&plan) else {
            return self.0.rewrite(plan, config);
        };
        // Those that contradict each other are one without columns, which it would push.
        let (stay, go): (Vec<_>, Vec<_>) = simplify_predicates(split_conjunction_owned(filter.predicate))?
            .into_iter()
            .partition(|p| p.is_volatile() || p.column_refs().is_empty());
        let (Some(stay), Some(go)) = (conjunction(stay.clone()), conjunction(go.clone())) else {
            // All of one kind: nothing may move, or everything may.
            return match stay.is_empty() {
                true => self.0.rewrite(plan, config),
                false => Ok(Transformed::no(plan)),
            };
        };
        let below = self.0.rewrite(LogicalPlan::Filter(Filter::try_new(go, filter.input)?), config)?;
        // What could not move stands beside what must not: two filters would be put together again, and pushed.
        let (stay, below) = match below {
            Transformed { transformed: false, .. } => return Ok(Transformed::no(plan)),
            Transformed { data: LogicalPlan::Filter(left), .. } => (stay.and(left.predicate), left.input),
            Transformed { data, .. } => (stay, Arc::new(data)),
        };
        Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(stay, below)?)))
    }
}

/// The filters above one of our nodes, or such an aggregate, as one, if the plan is such filters.
fn over_guarded(plan: &LogicalPlan) -> Option<Filter> {
    let mut predicates = Vec::new();
    let mut input = plan;
    while let LogicalPlan::Filter(filter) = input {
        predicates.push(filter.predicate.clone());
        input = &filter.input;
    }
    if !is_ours(input) && !gives_rows_for_none(input) {
        return None;
    }
    Filter::try_new(conjunction(predicates)?, Arc::new(input.clone())).ok()
}

/// Whether a plan groups by nothing, perhaps among other sets of keys.
fn gives_rows_for_none(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Aggregate(aggregate) = plan else { return false };
    match aggregate.group_expr.as_slice() {
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().any(Vec::is_empty),
        keys => keys.iter().all(|key| matches!(key, Expr::GroupingSet(GroupingSet::Rollup(_) | GroupingSet::Cube(_)))),
    }
}
