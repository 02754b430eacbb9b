//! What the scheduler has to know of a stage.

use std::sync::Arc;

use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::config::BlockyardOptions;
use crate::functions::{ActorPool, Compute, Workers};
use crate::physical::operator::{Operator, PlanExt};
use crate::physical::tasks::as_task_plan;
use crate::runtime::{OpId, OpSpec, PoolSpec, Resources};

/// What the scheduler has to know of the stage `plan`.
/// `consumer` is the operator that takes its blocks, if the scheduler knows it, and `feeds_all_to_all` says whether
/// that wants all of them before it gives anything.
pub(super) fn spec_of(
    plan: &Arc<dyn ExecutionPlan>,
    compute: &Compute,
    options: &BlockyardOptions,
    (consumer, feeds_all_to_all): (Option<OpId>, bool),
    total: Resources,
) -> OpSpec {
    let pool = match compute.workers {
        Workers::Actors(ActorPool { min, max, max_tasks_in_flight }) => {
            Some(PoolSpec { min, max, max_tasks_in_flight })
        }
        Workers::Tasks(_) => None,
    };
    let (is_read, read_cpus) = (is_read(plan.as_ref()), options.read_num_cpus.clamp(0.01, 1000.0));
    OpSpec {
        name: as_task_plan(plan.as_ref()).map_or_else(|| plan.name().to_owned(), |plan| plan.stage_name()),
        needs: match is_read {
            true => Resources { milli_cpus: (read_cpus * 1000.0) as u64, ..Resources::default() },
            false => needs(compute, total),
        },
        max_tasks: match compute.workers {
            Workers::Tasks(Some(most)) => Some(most),
            Workers::Tasks(None) => {
                let threads = plan.output_partitioning().partition_count();
                Some(if is_read { (threads as f64 / read_cpus).ceil() as usize } else { threads })
            }
            Workers::Actors(_) => None,
        },
        consumer,
        feeds_all_to_all,
        pool,
        waits_outside: has_other_leaves(plan.as_ref()),
    }
}

/// What a task of a stage needs. Where the user says how many tasks may run but not what they need, they do not take
/// all CPUs from those that feed them.
fn needs(compute: &Compute, total: Resources) -> Resources {
    let share = |tasks: usize| (total.milli_cpus / (2 * tasks.max(1) as u64)).clamp(1, 1000);
    let most = match compute.workers {
        Workers::Tasks(most) => most,
        Workers::Actors(pool) => pool.max,
    };
    let milli_cpus = match (compute.milli_cpus, most) {
        (Some(milli_cpus), _) => u64::from(milli_cpus),
        (None, Some(tasks)) => share(tasks),
        (None, None) => 1000,
    };
    Resources {
        milli_cpus,
        milli_gpus: compute.milli_gpus.map_or(0, u64::from),
        memory: compute.memory.map_or(0, |memory| memory.0 as u64),
        object_store_memory: 0,
        custom: compute.resources.iter().map(|(name, amount)| (name.clone(), u64::from(*amount))).collect(),
    }
}

fn is_read(plan: &dyn ExecutionPlan) -> bool {
    plan.as_operator().is_some_and(Operator::is_read)
}

/// Whether rows of a plan come from elsewhere than our reads, in which nobody sees what is under way.
fn has_other_leaves(plan: &dyn ExecutionPlan) -> bool {
    match plan.children().as_slice() {
        [] => !plan.is::<EmptyExec>() && !plan.is::<PlaceholderRowExec>(),
        _ if is_read(plan) => false,
        children => children.iter().any(|child| has_other_leaves(child.as_ref())),
    }
}
