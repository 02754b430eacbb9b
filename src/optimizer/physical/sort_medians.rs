//! Takes the median of all rows from the middle of their order, where the values may not fit in memory.
//!
//! ```text
//! AggregateExec: aggr=[median(x)]        AggregateExec: aggr=[median(x)]
//!   CoalescePartitionsExec         ->      MiddleRowsExec: order=[x ASC NULLS LAST]
//!                                            SortPreservingMergeExec: [x ASC NULLS LAST]
//!                                              SortExec: [x ASC NULLS LAST]
//! ```
//!
//! The aggregate keeps all of its values; a sort spills. Correct because the median of all values is that of the one or
//! two in the middle, and nulls are none. It stays as it is beside aggregates of other rows or values.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use super::cardinality::may_be_large;
use crate::config::BlockyardOptions;
use crate::physical::{IntoPlan, MiddleRowsExec, PlanExt, can_sort};

#[derive(Debug)]
pub(super) struct SortMedians;

impl PhysicalOptimizerRule for SortMedians {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let limit = BlockyardOptions::from_config(config).memory_limit.bytes();
        plan.transform_up(|node| match over_middle(&node, limit) {
            Some(input) => Ok(Transformed::yes(replace_children_if_necessary(node, vec![input])?)),
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "sort_medians"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The rows in the middle of the input of an aggregate, where it is made of medians of one value and that is of use.
fn over_middle(node: &Arc<dyn ExecutionPlan>, limit: usize) -> Option<Arc<dyn ExecutionPlan>> {
    let aggregate = node.downcast_ref::<AggregateExec>()?;
    let of_all_rows = *aggregate.mode() == AggregateMode::Single && aggregate.group_expr().is_empty();
    let [first, others @ ..] = aggregate.aggr_expr() else { return None };
    let is_median = first.fun().name() == "median" && !first.is_distinct();
    let are_same = others.iter().all(|other| other.fun().name() == "median" && !other.is_distinct())
        && others.iter().all(|other| other.expressions() == first.expressions());
    let has_filters = aggregate.filter_expr().iter().any(Option::is_some);
    let value = first.expressions().first().cloned()?;
    if !of_all_rows || !is_median || !are_same || has_filters || is_volatile(&value) {
        return None;
    }
    let input = match aggregate.input().downcast_ref::<CoalescePartitionsExec>() {
        Some(coalesce) if coalesce.fetch().is_none() => coalesce.input(),
        _ => aggregate.input(),
    };
    let order = LexOrdering::new([PhysicalSortExpr::new(value, SortOptions::new(false, false))])?;
    let is_median_already = input.operator::<MiddleRowsExec>().is_some();
    if is_median_already || !can_sort(&order, &input.schema()) || !may_be_large(input, limit) {
        return None;
    }
    let partitions = input.output_partitioning().partition_count();
    let sort = SortExec::new(order.clone(), Arc::clone(input)).with_preserve_partitioning(partitions > 1);
    let sorted: Arc<dyn ExecutionPlan> = match partitions {
        1 => Arc::new(sort),
        _ => Arc::new(SortPreservingMergeExec::new(order.clone(), Arc::new(sort))),
    };
    Some(MiddleRowsExec::new(sorted, order).into_plan())
}
