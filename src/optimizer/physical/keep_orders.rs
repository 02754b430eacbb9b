//! Keeps rows in their order where that counts: on their way to a function of ours, or to whoever asked for a dataset.
//!
//! For DataFusion, rows of a subquery have no order. Its `EnsureRequirements` takes sorts away whose order nobody asks
//! for or can name any more (below `key + 1 AS key`, below a union), moves a sort below the `LIMIT` of its input, and
//! deals rows out to several partitions again. This rule stands in its place, and calls it on a plan in which
//!
//! - every sort whose order counts, and every limit, has a barrier above that asks for the order below it; other sorts
//!   are gone,
//! - nothing is known of columns that does not hold ([`hide_claims`]), which is found again later,
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
//! The order does not count below aggregates, joins and other sorts. DataFusion would leave a gather of all rows in
//! place of the sorts there, or a plan that fails its own checks. Without `preserve_order` only these are taken out.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use super::fuse_maps::steps_of;
use super::hide_claims;
use crate::config::BlockyardOptions;
use crate::functions::Compute;
use crate::physical::{
    HideClaimsExec, IntoPlan, MapExec, OrderBarrierExec, PlanExt, ReadExec, as_task_plan, is_join, stores_rows,
    uses_ours,
};

#[derive(Debug)]
pub(super) struct KeepOrders(EnsureRequirements);

impl KeepOrders {
    pub(super) fn new() -> Self {
        Self(EnsureRequirements::new())
    }
}

impl PhysicalOptimizerRule for KeepOrders {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = guarded(plan, true, BlockyardOptions::from_config(config).preserve_order)?;
        let plan = plan.transform_up(hide_claims::without_wrong_claims).data()?;
        let without_barrier = |node: Arc<dyn ExecutionPlan>| {
            let order = node.operator::<OrderBarrierExec>().map(OrderBarrierExec::input);
            let input = order.or(node.operator::<HideClaimsExec>().map(HideClaimsExec::input)).cloned();
            Ok(input.map_or(Transformed::no(node), Transformed::yes))
        };
        self.0.optimize(plan, config)?.transform_up(without_barrier).data()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// The plan with barriers and stages, if it `keeps` orders, of which the order of the rows counts or not.
fn guarded(plan: Arc<dyn ExecutionPlan>, counts: bool, keeps: bool) -> Result<Arc<dyn ExecutionPlan>> {
    if !uses_ours(&plan) {
        return Ok(plan);
    }
    let counts_below = counts_below(plan.as_ref(), counts);
    let children = plan.children().into_iter().map(|child| guarded(Arc::clone(child), counts_below, keeps));
    let children = children.collect::<Result<Vec<_>>>()?;
    let plan = replace_children_if_necessary(plan, children)?;
    if counts
        && keeps
        && let Some(stage) = stage(&plan)
    {
        return Ok(stage);
    }
    Ok(match plan.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none()) {
        Some(sort) if !counts => Arc::clone(sort.input()),
        Some(_) if keeps => OrderBarrierExec::keeping_order(plan).into_plan(),
        None if keeps && is_limit(plan.as_ref()) => OrderBarrierExec::keeping_order(plan).into_plan(),
        _ => plan,
    })
}

fn is_limit(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>()
}

/// Whether the order of the inputs counts where that of the operator does, or does not.
fn counts_below(plan: &dyn ExecutionPlan, counts: bool) -> bool {
    // Windows number rows in the order in which they come.
    let numbers = plan.is::<WindowAggExec>() || plan.is::<BoundedWindowAggExec>();
    let changes = plan.is::<SortExec>() || plan.is::<AggregateExec>() || plan.is::<RepartitionExec>() || is_join(plan);
    numbers || is_limit(plan) || as_task_plan(plan).is_some() || stores_rows(plan) || counts && !changes
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
        // Filters of DataFusion may still move into the scan.
        Some(_) if input.is_operator::<ReadExec>() => None,
        _ => {
            let compute = input.operator::<MapExec>().map_or_else(Compute::default, |map| map.compute().clone());
            Some(MapExec::new(input, steps, compute).into_plan())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::compute::SortOptions;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::NullEquality;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, lit};
    use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};

    fn read() -> Arc<dyn ExecutionPlan> {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        ReadExec::new("Read", Arc::new(EmptyExec::new(schema).with_partitions(2)), 2).into_plan()
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
        MapExec::new(Arc::new(computed), Vec::new(), Compute::default()).into_plan()
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

    /// `a LEFT JOIN b ON a = k ORDER BY k`, where `k` is 3 in all of `b`.
    fn outer_join_in_order() -> Arc<dyn ExecutionPlan> {
        let column = |name: &str| Arc::new(Schema::new(vec![Field::new(name, DataType::Int64, true)]));
        let (a, b) = (Arc::new(EmptyExec::new(column("a"))), Arc::new(EmptyExec::new(column("k"))));
        let (left, right) = (col("a", &a.schema()).unwrap(), col("k", &b.schema()).unwrap());
        let is_three = binary(Arc::clone(&right), Operator::Eq, lit(3i64), &b.schema()).unwrap();
        let b = Arc::new(FilterExec::try_new(is_three, b).unwrap());
        let join = HashJoinExec::try_new(
            a,
            b,
            vec![(left, right)],
            None,
            &datafusion::common::JoinType::Left,
            None,
            PartitionMode::CollectLeft,
            NullEquality::NullEqualsNothing,
            false,
        );
        let join = Arc::new(join.unwrap());
        let key = |name: &str| PhysicalSortExpr::new(col(name, &join.schema()).unwrap(), SortOptions::default());
        Arc::new(SortExec::new(LexOrdering::new([key("k"), key("a")]).unwrap(), join))
    }

    #[test]
    fn datafusion_still_takes_what_is_padded_for_constant() {
        let plan = optimized(&EnsureRequirements::new(), outer_join_in_order());
        assert!(!plan.contains("expr=[k@1 ASC, a@0 ASC]"), "{plan}");
    }

    #[test]
    fn what_is_padded_with_nulls_is_sorted_by() {
        let plan = optimized(&KeepOrders::new(), outer_join_in_order());
        assert!(plan.contains("expr=[k@1 ASC, a@0 ASC]") && !plan.contains("HideClaims"), "{plan}");
        assert!(!plan.contains("HideClaims"), "{plan}");
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
