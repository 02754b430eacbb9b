//! Sorts the input of aggregates that keep all of their values by their groups, where the values may not fit in memory.
//!
//! A sort spills rows. The aggregate then has one group at a time, and gives it as soon as the next one begins, where
//! otherwise all groups grow together, and each spill writes, and reads back, lists of everything.
//!
//! ```text
//! AggregateExec: gby=[g], aggr=[array_agg(x)]        AggregateExec: gby=[g], aggr=[array_agg(x)], ordering_mode=Sorted
//!   RepartitionExec: hash(g)                    ->     SortExec: [g]
//!                                                        RepartitionExec: hash(g)
//! ```
//!
//! An order in which the values are wanted (`array_agg(x ORDER BY y)`) becomes the rest of the sort.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};

use super::cardinality::may_be_large;
use crate::config::BlockyardOptions;
use crate::physical::collects;

#[derive(Debug)]
pub(super) struct SortGroups;

impl PhysicalOptimizerRule for SortGroups {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let limit = BlockyardOptions::from_config(config).memory_limit.bytes();
        plan.transform_up(|node| match over_sorted(node.as_ref(), limit)? {
            Some(aggregate) => Ok(Transformed::yes(Arc::new(aggregate) as _)),
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "sort_groups"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The aggregate over sorted input, where that is of use.
fn over_sorted(node: &dyn ExecutionPlan, limit: usize) -> Result<Option<AggregateExec>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let in_one_phase = matches!(aggregate.mode(), AggregateMode::Single | AggregateMode::SinglePartitioned);
    let groups = aggregate.group_expr();
    let sortable = groups.is_single() && !groups.is_empty() && !groups.expr().iter().any(|(key, _)| is_volatile(key));
    let collects = aggregate.aggr_expr().iter().any(|function| collects(function));
    let is_sorted = *aggregate.input_order_mode() == InputOrderMode::Sorted;
    if !in_one_phase || !sortable || !collects || is_sorted || aggregate.limit_options().is_some() {
        return Ok(None);
    }
    let (input, within) = match aggregate.input().downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none()) {
        Some(sort) => (sort.input(), sort.expr().to_vec()),
        None => (aggregate.input(), Vec::new()),
    };
    if !may_be_large(input, limit) {
        return Ok(None);
    }
    let key = |(key, _): &(_, String)| PhysicalSortExpr::new(Arc::clone(key), SortOptions::default());
    let Some(order) = LexOrdering::new(groups.expr().iter().map(key).chain(within)) else { return Ok(None) };
    let partitions = input.output_partitioning().partition_count();
    let sort = SortExec::new(order, Arc::clone(input)).with_preserve_partitioning(partitions > 1);
    let sorted = AggregateExec::try_new(
        *aggregate.mode(),
        groups.clone(),
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        Arc::new(sort),
        aggregate.input_schema(),
    )?;
    let streams = *sorted.input_order_mode() == InputOrderMode::Sorted;
    Ok((streams && sorted.schema() == aggregate.schema()).then_some(sorted))
}
