//! Puts map operators that may run in one task into one stage, and a queue between those that may not.
//!
//! Two neighbours fuse when their compute is equal ([`Compute::canonical`]); filters, projections and local limits of
//! DataFusion above one of our stages become steps of it. Correct because steps work on the rows of one task, in order.
//!
//! ```text
//! FilterExec: v > 1                       MapExec: ReadParquet->MapBatches(f)->Filter(v > 1)
//!   MapExec: MapBatches(f)          ->      ReadExec: ReadParquet
//!     ReadExec: ReadParquet
//! ```
//!
//! The rule runs twice. `fuse_maps` comes before DataFusion looks at partitioning, and handles everything above a map
//! or an exchange; `absorb_into_reads` comes at the end, when filters have been pushed into the scans, and handles what
//! still stands above a read. Off with `optimize_fuse_stages`, `optimize_fuse_read_stages`,
//! `optimize_fuse_shuffle_stages`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::config::BlockyardOptions;
use crate::functions::Compute;
use crate::physical::{
    ExchangeExec, FilterStep, GatherExec, IntoPlan, LimitStep, MapExec, MapStep, PlanExt, ProjectStep, QueueExec,
    ReadExec, TaskPlan, as_task_plan,
};

#[derive(Debug)]
pub(super) struct FuseMaps {
    name: &'static str,
    absorb_over_reads: bool,
}

impl FuseMaps {
    /// Fuses above maps and exchanges.
    pub(super) fn over_maps() -> Self {
        Self { name: "fuse_maps", absorb_over_reads: false }
    }

    /// Fuses above reads too.
    pub(super) fn over_reads() -> Self {
        Self { name: "absorb_into_reads", absorb_over_reads: true }
    }
}

impl PhysicalOptimizerRule for FuseMaps {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        plan.transform_up(|node| self.rewrite(node, &options)).data()
    }

    fn name(&self) -> &str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl FuseMaps {
    fn rewrite(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &BlockyardOptions,
    ) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let rewritten = match self.absorb(&plan) {
            Some(stage) => Some(exactly(fuse(stage, options), limit_of(&plan))),
            None => match (plan.operator::<MapExec>(), plan.operator::<ExchangeExec>()) {
                (Some(map), _) if !is_placed(map) => {
                    let map = MapExec::new(Arc::clone(map.input()), map.steps().to_vec(), map.compute().clone());
                    Some(fuse(map, options))
                }
                (_, Some(exchange)) if !exchange.is_fused() => fuse_exchange(exchange, options),
                _ => None,
            },
        };
        Ok(rewritten.map_or_else(|| Transformed::no(plan), Transformed::yes))
    }

    /// A filter or projection above one of our stages, as a stage of its own.
    fn absorb(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<MapExec> {
        let (input, steps) = steps_of(plan)?;
        as_task_plan(input.as_ref())?;
        if input.is_operator::<ReadExec>() && !self.absorb_over_reads {
            return None;
        }
        let compute = input.operator::<MapExec>().map_or_else(Compute::default, |map| map.compute().clone());
        Some(MapExec::new(input, steps, compute))
    }
}

pub(super) type Steps = Vec<Arc<dyn MapStep>>;

/// Steps that do what an operator of DataFusion does, and its input.
pub(super) fn steps_of(plan: &Arc<dyn ExecutionPlan>) -> Option<(Arc<dyn ExecutionPlan>, Steps)> {
    let known = plan.equivalence_properties();
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let input = Arc::clone(filter.input());
        let filtered = match filter.projection() {
            Some(_) => EquivalenceProperties::new(input.schema()),
            None => known.clone(),
        };
        let mut steps: Steps = vec![Arc::new(FilterStep::new(Arc::clone(filter.predicate()), filtered))];
        if let Some(projection) = filter.projection() {
            let schema = input.schema();
            let column = |i: &usize| Arc::new(Column::new(schema.field(*i).name(), *i)) as Arc<dyn PhysicalExpr>;
            let columns = projection.iter().map(column).collect();
            steps.push(Arc::new(ProjectStep::new(columns, known.clone())));
        }
        steps.extend(filter.fetch().map(|fetch| Arc::new(LimitStep::new(fetch, known.clone())) as Arc<dyn MapStep>));
        return Some((input, steps));
    }
    if let Some(limit) = plan.downcast_ref::<LocalLimitExec>() {
        let input = Arc::clone(limit.input());
        let step = Arc::new(LimitStep::new(limit.fetch(), known.clone()));
        return Some((input, vec![step]));
    }
    let projection = plan.downcast_ref::<ProjectionExec>()?;
    let expressions = projection.expr().iter().map(|e| Arc::clone(&e.expr)).collect();
    let step = Arc::new(ProjectStep::new(expressions, known.clone()));
    Some((Arc::clone(projection.input()), vec![step]))
}

/// The most rows of a partition, where the operator has a limit.
fn limit_of(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    plan.downcast_ref::<LocalLimitExec>().map(|limit| limit.fetch()).or_else(|| plan.fetch())
}

/// A limit on each task is enough where something above takes the exact number; over a single partition nothing does.
fn exactly(stage: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Arc<dyn ExecutionPlan> {
    match fetch {
        Some(_) if stage.output_partitioning().partition_count() == 1 => GatherExec::new(stage, fetch).into_plan(),
        _ => stage,
    }
}

/// Whether a map is where this rule would put it: fused, or behind a queue, or above a plan of DataFusion.
fn is_placed(map: &MapExec) -> bool {
    map.is_fused() || map.input().is_operator::<QueueExec>() || as_task_plan(map.input().as_ref()).is_none()
}

fn fuse(map: MapExec, options: &BlockyardOptions) -> Arc<dyn ExecutionPlan> {
    let input = Arc::clone(map.input());
    let behind_queue = |map: &MapExec| {
        let queue = QueueExec::new(Arc::clone(map.input())).into_plan();
        MapExec::new(queue, map.steps().to_vec(), map.compute().clone()).into_plan()
    };
    if let Some(below) = input.operator::<MapExec>() {
        if !options.optimize_fuse_stages || below.compute().canonical() != map.compute().canonical() {
            return behind_queue(&map);
        }
        let steps = [below.steps(), map.steps()].concat();
        let below_input = Arc::clone(below.input());
        let fused = MapExec::new(below_input, steps, map.compute().clone());
        return if below.is_fused() { fused.fused() } else { fused }.into_plan();
    }
    if input.is_operator::<ReadExec>() {
        let fuses =
            options.optimize_fuse_stages && options.optimize_fuse_read_stages && map.compute().needs_nothing_special();
        return if fuses { map.fused().into_plan() } else { behind_queue(&map) };
    }
    // The buckets of an exchange are tasks already: what reads them needs no queue.
    map.into_plan()
}

fn fuse_exchange(exchange: &ExchangeExec, options: &BlockyardOptions) -> Option<Arc<dyn ExecutionPlan>> {
    let input = exchange.input();
    if !(input.is_operator::<MapExec>() || input.is_operator::<ReadExec>()) || !exchange.scheme().absorbs_maps() {
        return None;
    }
    let allowed = match input.is_operator::<ReadExec>() {
        true => options.optimize_fuse_read_stages,
        false => true,
    };
    // The map side of an exchange runs as many tasks as there are threads.
    let plain = input.operator::<MapExec>().is_none_or(|map| map.compute().canonical() == Compute::default());
    if options.optimize_fuse_stages && options.optimize_fuse_shuffle_stages && allowed && plain {
        let fused = exchange.over(Arc::clone(input)).fused();
        return Some(fused.into_plan());
    }
    let queue = QueueExec::new(Arc::clone(input));
    let queue = if exchange.streams() { queue } else { queue.before_all_to_all() }.into_plan();
    Some(exchange.over(queue).into_plan())
}
