//! Gives aggregates several small tables for each thread instead of a large one.
//!
//! ```text
//!                                   FoldExec: partitions=2
//! AggregateExec: final                AggregateExec: final
//!   RepartitionExec: hash(k), 2  ->     RepartitionExec: hash(k), 16
//!     AggregateExec: partial              FlushExec
//!                                           AggregateExec: partial
//! ```
//!
//! Small tables are faster, too. There are fewer where memory is so scarce that many leave nothing for each, and plans
//! over a few rows stay as DataFusion makes them.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{FlushExec, FoldExec, IntoPlan};

/// Tables for each partition, at most,
const MAX_TABLES_EACH: usize = 8;
/// and for all of them, where that makes more than one for each: a repartition cuts each batch into so many.
const MAX_TABLES: usize = 32;
/// An aggregate of rows that are known, or thought, to be fewer stays as it is.
const FEW_ROWS: usize = 1 << 20;
/// What each of them should have at least.
const MIN_TABLE_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct SplitAggregates;

impl PhysicalOptimizerRule for SplitAggregates {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let limit = BlockyardOptions::from_config(config).memory_limit.bytes();
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            let Some(repartition) = below_final(node.as_ref()) else {
                return Ok(Transformed::no(node));
            };
            let Partitioning::Hash(keys, partitions) = repartition.partitioning() else {
                return Ok(Transformed::no(node));
            };
            let most = MAX_TABLES.min(limit / MIN_TABLE_BYTES);
            let tables = (most / partitions).min(MAX_TABLES_EACH);
            if tables < 2 || has_few_rows(repartition) {
                return Ok(Transformed::no(node));
            }
            let (keys, partitions) = (keys.clone(), *partitions);
            let many = Partitioning::Hash(keys, tables * partitions);
            let repartition = RepartitionExec::try_new(flushed(repartition.input()), many)?;
            let aggregate = replace_children_if_necessary(node, vec![Arc::new(repartition) as _])?;
            Ok(Transformed::yes(FoldExec::try_new(aggregate, partitions)?.into_plan()))
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "split_aggregates"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The same groups from a table that may give them when it leaves the cache, if there is a table.
fn flushed(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let has_table = |aggregate: &AggregateExec| {
        *aggregate.mode() == AggregateMode::Partial
            && *aggregate.input_order_mode() == InputOrderMode::Linear
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
    };
    match plan.downcast_ref::<AggregateExec>().is_some_and(has_table) {
        true => FlushExec::new(Arc::clone(plan)).into_plan(),
        false => Arc::clone(plan),
    }
}

fn has_few_rows(plan: &dyn ExecutionPlan) -> bool {
    let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new());
    statistics.is_ok_and(|statistics| statistics.num_rows.get_value().is_some_and(|rows| *rows < FEW_ROWS))
}

/// The repartition below a final aggregate that takes in all rows before it gives one.
fn below_final(plan: &dyn ExecutionPlan) -> Option<&RepartitionExec> {
    let aggregate = plan.downcast_ref::<AggregateExec>()?;
    let takes_all = *aggregate.input_order_mode() == InputOrderMode::Linear && aggregate.limit_options().is_none();
    if *aggregate.mode() != AggregateMode::FinalPartitioned || !takes_all {
        return None;
    }
    let repartition = aggregate.input().downcast_ref::<RepartitionExec>()?;
    (!repartition.preserve_order()).then_some(repartition)
}
