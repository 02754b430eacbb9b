//! How many rows a plan gives: at the most, and as a guess.
//!
//! Statistics alone do not say: fused stages have none, and DataFusion guesses of a join without statistics of its
//! columns that it gives as many rows as its smaller side.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::CardinalityEffect::{Equal, GreaterEqual, LowerEqual, Unknown};
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;

use crate::physical::{BucketJoinExec, PLENTY, PlanExt, row_bytes};

/// Of how many rows a condition is expected to keep one: DataFusion's guess.
const KEPT_ONE_IN: usize = 5;
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
    most.into_iter().chain(plan.fetch()).min()
}

/// Whether rows may be more than a part of the limit. Of those whose number is unknown, that is so where memory is
/// scarce.
pub(super) fn may_be_large(input: &Arc<dyn ExecutionPlan>, limit: usize) -> bool {
    match max_rows(input) {
        Some(rows) => rows.saturating_mul(row_bytes(input.as_ref())) > limit / SMALL_PART,
        None => limit <= PLENTY,
    }
}

/// A guess of the rows that a plan gives: conditions keep a fifth, a join gives as many rows as its larger side has.
pub(super) fn expected_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let expected = match plan.children().as_slice() {
        [] => rows_of_source(plan),
        [input] => match plan.cardinality_effect() {
            Equal => expected_rows(input),
            // The groups of an aggregate may be as many as its rows.
            LowerEqual if plan.is::<AggregateExec>() => expected_rows(input),
            LowerEqual => expected_rows(input).map(|rows| rows / KEPT_ONE_IN),
            Unknown | GreaterEqual => None,
        },
        inputs if plan.is::<UnionExec>() => inputs.iter().map(|input| expected_rows(input)).sum(),
        [left, right] => match join_type(plan)? {
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => expected_rows(left),
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => expected_rows(right),
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
                Some(expected_rows(left)?.max(expected_rows(right)?))
            }
        },
        _ => None,
    };
    expected.into_iter().chain(plan.fetch()).min()
}

/// The kind of a join by keys.
fn join_type(plan: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        Some(*join.join_type())
    } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        Some(join.join_type())
    } else {
        plan.operator::<BucketJoinExec>().map(BucketJoinExec::join_type)
    }
}

/// Whether each row belongs to several groups.
fn is_of_many_groupings(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| !aggregate.group_expr().is_single())
}

fn rows_of_source(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    statistics.num_rows.get_value().copied()
}
