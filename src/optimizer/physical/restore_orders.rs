//! Sorts where an operator asks for an order that its input is no longer known to have.
//!
//! What is known of an order can rest on what is known of columns: where `k` is 3 in all rows, sorting by `id` is
//! sorting by `k, id`. DataFusion concludes that from predicates and from statistics, and concludes it again whenever
//! an operator gets another input. Our operators say the same before and after a rule (`physical/operator/claims.rs`),
//! but statistics may be lost. A sort that does not change the order is then better than a plan that is refused.
//!
//! ```text
//! SortPreservingMergeExec: [k, id]        SortPreservingMergeExec: [k, id]
//!   SortExec: [id]                   ->     SortExec: [k, id]
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

#[derive(Debug)]
pub(super) struct RestoreOrders;

impl PhysicalOptimizerRule for RestoreOrders {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let mut changed = false;
            let mut children = Vec::new();
            for (child, order) in node.children().into_iter().zip(node.required_input_ordering()) {
                changed |= !has_order(child, order.as_ref())?;
                children.push(in_order(Arc::clone(child), order)?);
            }
            match changed {
                true => Ok(Transformed::yes(replace_children_if_necessary(node, children)?)),
                false => Ok(Transformed::no(node)),
            }
        })
        .data()
    }

    fn name(&self) -> &str {
        "restore_orders"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether it is known that a plan has an order, if one is asked for.
pub(super) fn has_order(plan: &Arc<dyn ExecutionPlan>, order: Option<&OrderingRequirements>) -> Result<bool> {
    match order {
        Some(order) => plan.equivalence_properties().ordering_satisfy_requirement(order.clone().into_single()),
        None => Ok(true),
    }
}

/// A plan with an order, if one is asked for: sorted where it is not known to have it.
pub(super) fn in_order(
    plan: Arc<dyn ExecutionPlan>,
    order: Option<OrderingRequirements>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match order {
        Some(order) if !has_order(&plan, Some(&order))? => Ok(sorted(&plan, LexOrdering::from(order.into_single()))),
        _ => Ok(plan),
    }
}

/// The rows of each partition in an order, which replaces the one that they were sorted by.
fn sorted(plan: &Arc<dyn ExecutionPlan>, order: LexOrdering) -> Arc<dyn ExecutionPlan> {
    let (input, partitioned) = match plan.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none()) {
        Some(sort) => (sort.input(), sort.preserve_partitioning()),
        None => (plan, plan.output_partitioning().partition_count() > 1),
    };
    Arc::new(SortExec::new(order, Arc::clone(input)).with_preserve_partitioning(partitioned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;

    fn order(columns: &[(&str, usize)]) -> LexOrdering {
        let keys =
            columns.iter().map(|(name, index)| PhysicalSortExpr::new_default(Arc::new(Column::new(name, *index))));
        LexOrdering::new(keys).unwrap()
    }

    /// A merge by `k, id` over a sort of three partitions.
    fn merge_over(sorted_by: &[(&str, usize)], fetch: Option<usize>) -> Arc<dyn ExecutionPlan> {
        let field = |name| Field::new(name, DataType::Int64, false);
        let empty = EmptyExec::new(Arc::new(Schema::new(vec![field("k"), field("id")]))).with_partitions(3);
        let sort = SortExec::new(order(sorted_by), Arc::new(empty)).with_preserve_partitioning(true).with_fetch(fetch);
        Arc::new(SortPreservingMergeExec::new(order(&[("k", 0), ("id", 1)]), Arc::new(sort)))
    }

    fn restored(plan: Arc<dyn ExecutionPlan>) -> String {
        let once = RestoreOrders.optimize(plan, &ConfigOptions::default()).unwrap();
        let shown = displayable(once.as_ref()).indent(false).to_string();
        let twice = RestoreOrders.optimize(once, &ConfigOptions::default()).unwrap();
        assert_eq!(displayable(twice.as_ref()).indent(false).to_string(), shown);
        shown
    }

    #[test]
    fn a_sort_by_too_few_keys_sorts_by_all() {
        insta::assert_snapshot!(restored(merge_over(&[("id", 1)], None)), @"
        SortPreservingMergeExec: [k@0 ASC, id@1 ASC]
          SortExec: expr=[k@0 ASC, id@1 ASC], preserve_partitioning=[true]
            EmptyExec
        ");
    }

    #[test]
    fn the_first_rows_are_sorted_again() {
        insta::assert_snapshot!(restored(merge_over(&[("id", 1)], Some(5))), @"
        SortPreservingMergeExec: [k@0 ASC, id@1 ASC]
          SortExec: expr=[k@0 ASC, id@1 ASC], preserve_partitioning=[true]
            SortExec: TopK(fetch=5), expr=[id@1 ASC], preserve_partitioning=[true]
              EmptyExec
        ");
    }

    #[test]
    fn what_is_in_order_stays() {
        let plan = merge_over(&[("k", 0), ("id", 1)], None);
        let before = displayable(plan.as_ref()).indent(false).to_string();
        assert_eq!(restored(plan), before);
    }
}
