//! Joins of which no side has to fit in memory.

mod bucket_join;
mod known_keys;
mod loop_join;
mod merge;
mod side;
mod units;

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec, SymmetricHashJoinExec,
};

pub(crate) use bucket_join::BucketJoinExec;
pub(crate) use loop_join::LoopJoinExec;

use super::operator::PlanExt;

/// Whether an operator is a join.
pub(crate) fn is_join(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<SymmetricHashJoinExec>()
        || plan.is::<PiecewiseMergeJoinExec>()
        || plan.is_operator::<BucketJoinExec>()
        || plan.is_operator::<LoopJoinExec>()
}

/// The join on equal keys that an operator is.
pub(crate) fn equi_join(plan: &Arc<dyn ExecutionPlan>) -> Option<&HashJoinExec> {
    plan.downcast_ref::<HashJoinExec>().or_else(|| plan.operator::<BucketJoinExec>().map(BucketJoinExec::join))
}

/// All joins on equal keys of a plan: those above come first.
pub(crate) fn equi_joins(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let here = equi_join(plan).map(|_| Arc::clone(plan));
    here.into_iter().chain(plan.children().into_iter().flat_map(equi_joins)).collect()
}
