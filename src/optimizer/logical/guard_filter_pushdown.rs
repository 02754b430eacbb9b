//! Keeps predicates without columns, and volatile ones, above our nodes.
//!
//! DataFusion pushes such predicates (`random() < 0.5`) below any extension node and into each of its inputs, whatever
//! columns the node protects: both sides of a zip would lose other rows, and a function would see other batches. This
//! rule stands in place of DataFusion's `push_down_filter`, which it calls for everything else.
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
use datafusion::logical_expr::{Filter, LogicalPlan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
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
        let filter = match plan {
            LogicalPlan::Filter(filter) if is_ours(&filter.input) => filter,
            other => return self.0.rewrite(other, config),
        };
        let (stay, go): (Vec<_>, Vec<_>) = split_conjunction_owned(filter.predicate.clone())
            .into_iter()
            .partition(|p| p.is_volatile() || p.column_refs().is_empty());
        let Some(stay) = conjunction(stay) else {
            return self.0.rewrite(LogicalPlan::Filter(filter), config);
        };
        let Some(go) = conjunction(go) else {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        };
        let below = LogicalPlan::Filter(Filter::try_new(go, filter.input)?);
        let below = self.0.rewrite(below, config)?;
        Ok(below.update_data(|p| p)).and_then(|below| {
            let changed = below.transformed;
            let plan = LogicalPlan::Filter(Filter::try_new(stay, Arc::new(below.data))?);
            Ok(if changed { Transformed::yes(plan) } else { Transformed::no(plan) })
        })
    }
}
