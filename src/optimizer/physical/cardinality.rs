//! How many rows a plan gives at the most. Statistics do not say: fused stages have none.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::CardinalityEffect::{GreaterEqual, Unknown};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;

use crate::physical::{PLENTY, row_bytes};

/// Rows that are known to have at most this part of the limit are few.
const SMALL_PART: usize = 8;

/// A number of rows that a plan gives at the most, whatever its filters and groups. What a join gives is not known.
pub(super) fn max_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let most = match plan.children().as_slice() {
        [] => rows_of_source(plan),
        [_] if is_of_many_groupings(plan) => None,
        [input] if !matches!(plan.cardinality_effect(), Unknown | GreaterEqual) => max_rows(input),
        inputs if plan.is::<UnionExec>() => inputs.iter().map(|input| max_rows(input)).sum(),
        _ => None,
    };
    most.into_iter().chain(plan.fetch()).chain(is_of_all_rows(plan).then_some(1)).min()
}

/// Whether rows may be more than a part of the limit. Of those whose number is unknown, that is so where memory is
/// scarce.
pub(super) fn may_be_large(input: &Arc<dyn ExecutionPlan>, limit: usize) -> bool {
    match max_rows(input) {
        Some(rows) => rows.saturating_mul(row_bytes(input.as_ref())) > limit / SMALL_PART,
        None => limit <= PLENTY,
    }
}

/// Whether it is the aggregate of all rows.
fn is_of_all_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| {
        matches!(aggregate.mode(), AggregateMode::Final | AggregateMode::Single)
            && aggregate.group_expr().is_true_no_grouping()
    })
}

/// Whether each row belongs to several groups.
fn is_of_many_groupings(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| !aggregate.group_expr().is_single())
}

fn rows_of_source(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    statistics.num_rows.get_value().copied()
}
