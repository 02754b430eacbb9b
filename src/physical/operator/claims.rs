//! What our operators say of their rows: which columns are constant, which are equal, and by what rows are sorted.
//!
//! DataFusion leaves out sorts, and keys of sorts, where this says that it may, and checks all of it again when the
//! last rule has run. So it has to be the same before and after each of our rules, whether an operator is replaced,
//! fused, or gets another input. Therefore every operator computes it here from its input when it is made, and says
//! nothing that this does not follow from.
//!
//! | operator | says |
//! |---|---|
//! | read, queue, exchange, fold, bucket join, loop join, gather | what is true of each row by itself |
//! | gather of one partition, compact | all that its input says |
//! | gather of a sort | what the sort said |
//! | map | what was said by the operator of DataFusion that its last step stands for; nothing after a function |
//! | zip, mix | nothing |

use std::sync::Arc;

use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::physical::map::MapStep;

/// What stays true of the rows of `plan` when they come in other streams and in another order: each of them is what it
/// was.
pub(crate) fn of_rows(plan: &dyn ExecutionPlan) -> EquivalenceProperties {
    let mut known = plan.properties().equivalence_properties().clone();
    known.clear_orderings();
    known.clear_per_partition_constants();
    known
}

/// What is true of the partitions of `plan` after each other: with one of them, what is true of it.
pub(crate) fn of_gathered(plan: &Arc<dyn ExecutionPlan>) -> EquivalenceProperties {
    match plan.output_partitioning().partition_count() {
        1 => plan.equivalence_properties().clone(),
        _ => of_rows(plan.as_ref()),
    }
}

/// What is true of the rows of `input` after steps that run on each of its tasks.
pub(crate) fn of_steps(input: &Arc<dyn ExecutionPlan>, steps: &[Arc<dyn MapStep>]) -> EquivalenceProperties {
    let Some(last) = steps.last() else { return of_rows(input.as_ref()) };
    let Some(known) = last.known() else { return EquivalenceProperties::new(Arc::clone(last.schema())) };
    let mut known = known.clone();
    known.clear_per_partition_constants();
    if input.output_ordering().is_none() {
        known.clear_orderings();
    }
    known
}
