//! Where the stages of a plan run, decided before an execution.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::session_state::SessionState;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use datafusion::prelude::SessionConfig;

use super::exec::{Place, RemoteExec};
use super::{Assigned, Connector, stage_print};
use crate::config::{BlockyardOptions, ByteSize, MemoryLimit};
use crate::physical::operator::{IntoPlan, PlanExt};
use crate::physical::{linked, remote_stages};

/// The session with which a plan is made that executors may run parts of, where there are such: within the memory of
/// the smallest, and without what operators of one process tell each other: filters that one changes while another
/// reads, and numbers for texts. Its aggregates are in two parts.
pub(crate) async fn fitting_executors(state: &SessionState) -> Result<Option<SessionState>> {
    let options = BlockyardOptions::from_config(state.config_options());
    let connector = state.config().get_extension::<Connector>().filter(|_| !options.cluster.trim().is_empty());
    let Some(connector) = connector else { return Ok(None) };
    let mut state = state.clone();
    let datafusion = state.config_mut().options_mut();
    datafusion.set("datafusion.optimizer.enable_dynamic_filter_pushdown", "false")?;
    // With one partition no operator is in two parts, of which others could have the first.
    datafusion.execution.target_partitions = datafusion.execution.target_partitions.max(2);
    let least = connector.0.least_memory(state.config()).await?.filter(|least| *least < options.memory_limit.bytes());
    let memory_limit = least.map_or(options.memory_limit, |least| MemoryLimit::Bytes(ByteSize(least)));
    // Numbers that stand for texts are of one process.
    let options = BlockyardOptions { memory_limit, optimize_coded_texts: false, ..options };
    state.config_mut().options_mut().extensions.insert(options);
    Ok(Some(state))
}

/// The plan with its stages where they can run, and what is to be held as long as it runs.
pub(crate) async fn assigned(
    plan: Arc<dyn ExecutionPlan>,
    config: &SessionConfig,
) -> Result<(Arc<dyn ExecutionPlan>, Option<Arc<dyn Any + Send + Sync>>)> {
    let prints: Vec<_> = remote_stages(&plan).iter().map(stage_print).collect();
    let Some(connector) = config.get_extension::<Connector>().filter(|_| !prints.is_empty()) else {
        return Ok((plan, None));
    };
    let Assigned { stages, held } = connector.0.assign(config, &prints).await?;
    let mut stages = stages.into_iter();
    // The stages were listed in this order.
    let assign = |node: Arc<dyn ExecutionPlan>| {
        let Some(remote) = node.operator::<RemoteExec>() else { return Ok(Transformed::no(node)) };
        let placed: Vec<_> = remote.stages().zip(stages.by_ref()).collect();
        let placed = match placed.as_slice() {
            [(stage, Err(_)), (rows, Ok(runner))] => {
                // Who has not planned the write may have planned its rows.
                let rows = RemoteExec::new(Arc::clone(rows)).at(Place::There(Arc::clone(runner))).into_plan();
                replace_children_if_necessary(Arc::clone(stage), vec![rows])?
            }
            [(_, Ok(runner)), ..] => remote.at(Place::There(Arc::clone(runner))).into_plan(),
            [(_, Err(why)), ..] => remote.at(Place::Here(Some(Arc::clone(why)))).into_plan(),
            [] => remote.at(Place::Here(None)).into_plan(),
        };
        Ok(Transformed::new(placed, true, TreeNodeRecursion::Jump))
    };
    let placed = plan.transform_down(assign).data()?;
    Ok((linked(placed)?, Some(held)))
}
