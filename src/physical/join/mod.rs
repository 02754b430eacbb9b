//! Joins of which no side has to fit in memory.

mod bucket_join;
mod known_keys;
mod loop_join;
mod merge;
mod side;
mod units;

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

pub(crate) use bucket_join::BucketJoinExec;
pub(crate) use loop_join::LoopJoinExec;

use super::operator::PlanExt;

/// The join on equal keys that an operator is.
pub(crate) fn equi_join(plan: &Arc<dyn ExecutionPlan>) -> Option<&HashJoinExec> {
    plan.downcast_ref::<HashJoinExec>().or_else(|| plan.operator::<BucketJoinExec>().map(BucketJoinExec::join))
}

/// All joins on equal keys of a plan: those above come first.
pub(crate) fn equi_joins(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let here = equi_join(plan).map(|_| Arc::clone(plan));
    here.into_iter().chain(plan.children().into_iter().flat_map(equi_joins)).collect()
}
