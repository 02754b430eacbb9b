//! Keeps rows in their order where that counts: on their way to a function of ours, or to whoever asked for a dataset.
//!
//! For DataFusion, rows of a subquery have no order. Its `EnsureRequirements` takes sorts away whose order nobody asks for or
//! can name any more (below `key + 1 AS key`, below a union), moves a sort below the `LIMIT` of its input, and deals rows out to
//! several partitions again. This rule stands in its place, and calls it on a plan in which
//!
//! - every sort whose order counts, and every limit, has a barrier above that asks for the order below it,
//! - filters and projections above unions, limits and sorts are stages of ours, which keep the order of their tasks.
//!
//! ```text
//! MapExec: MapBatches(f)                        MapExec: MapBatches(f)
//!   ProjectionExec: key + 1                       MapExec: Project(key + 1)
//!     UnionExec                            ->       UnionExec
//!       ReadExec: ReadParquet                         ReadExec: ReadParquet
//!       SortExec: key                                 OrderBarrierExec
//!                                                       SortExec: key
//! ```
//!
//! Where the order does not count, as below aggregates and joins, DataFusion does as ever. Off with `preserve_order`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::fuse_maps::steps_of;
use crate::config::BlockyardOptions;
use crate::functions::Compute;
use crate::physical::{MapExec, OrderBarrierExec, as_task_plan, stores_rows, uses_ours};

#[derive(Debug)]
pub(super) struct KeepOrders(EnsureRequirements);

impl KeepOrders {
    pub(super) fn new() -> Self {
        Self(EnsureRequirements::new())
    }
}

impl PhysicalOptimizerRule for KeepOrders {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !uses_ours(&plan) || !BlockyardOptions::from_config(config).preserve_order {
            return self.0.optimize(plan, config);
        }
        let without_barrier = |node: Arc<dyn ExecutionPlan>| {
            Ok(match node.downcast_ref::<OrderBarrierExec>() {
                Some(barrier) => Transformed::yes(Arc::clone(barrier.input())),
                None => Transformed::no(node),
            })
        };
        self.0.optimize(guarded(plan, true)?, config)?.transform_up(without_barrier).data()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// The plan with barriers and stages, of which the order of the rows counts or not.
fn guarded(plan: Arc<dyn ExecutionPlan>, counts: bool) -> Result<Arc<dyn ExecutionPlan>> {
    if !uses_ours(&plan) {
        return Ok(plan);
    }
    let counts_below = counts_below(plan.as_ref(), counts);
    let children = plan.children().into_iter().map(|child| guarded(Arc::clone(child), counts_below));
    let children = children.collect::<Result<Vec<_>>>()?;
    let plan = replace_children_if_necessary(plan, children)?;
    if counts && let Some(stage) = stage(&plan) {
        return Ok(stage);
    }
    let sort = plan.downcast_ref::<SortExec>().filter(|sort| counts && sort.fetch().is_none());
    let limits = plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>();
    Ok(if sort.is_some() || limits { Arc::new(OrderBarrierExec::new(plan)) } else { plan })
}

/// Whether the order of the inputs counts where that of the operator does, or does not.
fn counts_below(plan: &dyn ExecutionPlan, counts: bool) -> bool {
    if as_task_plan(plan).is_some() || stores_rows(plan) {
        return true;
    }
    // They number rows in the order in which they come.
    if plan.is::<WindowAggExec>() || plan.is::<BoundedWindowAggExec>() {
        return true;
    }
    let keeps = plan.is::<OutputRequirementExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<FilterExec>()
        || plan.is::<GlobalLimitExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<UnionExec>()
        || plan.is::<UnnestExec>();
    keeps && counts
}

/// A filter or a projection that computes, over what is no stage of ours, as such a stage. Others stay where DataFusion
/// can move them, since nobody deals out rows for them.
fn stage(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let dealt_out = plan.benefits_from_input_partitioning().contains(&true);
    let over_union = plan.children().into_iter().any(|child| child.is::<UnionExec>());
    if !(plan.is::<ProjectionExec>() || plan.is::<FilterExec>()) || !(dealt_out || over_union) {
        return None;
    }
    let (input, steps) = steps_of(plan)?;
    match as_task_plan(input.as_ref()) {
        Some(_) => None,
        None => Some(Arc::new(MapExec::new(input, steps, Compute::default()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::compute::SortOptions;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, lit};
    use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;

    use crate::physical::ReadExec;

    fn read() -> Arc<dyn ExecutionPlan> {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        Arc::new(ReadExec::new("Read", Arc::new(EmptyExec::new(schema).with_partitions(2)), 2))
    }

    fn sorted(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let by = PhysicalSortExpr::new(col("a", &input.schema()).unwrap(), SortOptions::default());
        Arc::new(SortExec::new(LexOrdering::new([by]).unwrap(), input))
    }

    fn first_rows(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        Arc::new(GlobalLimitExec::new(Arc::new(LocalLimitExec::new(input, 10)), 0, Some(10)))
    }

    /// A map over `a + 1` of rows in order.
    fn computed_in_order() -> Arc<dyn ExecutionPlan> {
        let input = sorted(read());
        let sum = binary(col("a", &input.schema()).unwrap(), Operator::Plus, lit(1i64), &input.schema()).unwrap();
        let computed = ProjectionExec::try_new(vec![(sum, "a".to_owned())], input).unwrap();
        Arc::new(MapExec::new(Arc::new(computed), Vec::new(), Compute::default()))
    }

    fn optimized(rule: &dyn PhysicalOptimizerRule, plan: Arc<dyn ExecutionPlan>) -> String {
        let plan = rule.optimize(plan, &ConfigOptions::default()).unwrap();
        displayable(plan.as_ref()).indent(false).to_string()
    }

    /// When these fail after an upgrade, the guard may have become unnecessary.
    #[test]
    fn datafusion_still_moves_a_sort_below_a_limit() {
        let plan = optimized(&EnsureRequirements::new(), sorted(first_rows(read())));
        assert!(plan.starts_with("GlobalLimitExec") && plan.contains("SortExec"), "{plan}");
    }

    #[test]
    fn datafusion_still_takes_a_sort_away_whose_order_has_no_name() {
        let plan = optimized(&EnsureRequirements::new(), computed_in_order());
        assert!(!plan.contains("SortExec"), "{plan}");
    }

    #[test]
    fn a_limit_comes_before_the_sort_above_it() {
        let plan = optimized(&KeepOrders::new(), sorted(first_rows(read())));
        assert!(
            plan.starts_with("SortExec") && plan.contains("GlobalLimitExec") && !plan.contains("Barrier"),
            "{plan}"
        );
    }

    #[test]
    fn a_sort_below_a_function_stays() {
        let plan = optimized(&KeepOrders::new(), computed_in_order());
        assert!(plan.contains("SortExec") && !plan.contains("ProjectionExec"), "{plan}");
    }
}
