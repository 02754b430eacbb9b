//! `RepartitionNode` -> `ExchangeExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::compute::SortOptions;
use datafusion::catalog::Session;
use datafusion::common::{Result, internal_err, not_impl_err};
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::config::BlockyardOptions;
use crate::logical::{RepartitionNode, Repartitioning};
use crate::physical::{
    BlockSize, ExchangeExec, HashScheme, IntoPlan, RangeScheme, SizeScheme, SliceScheme, SpreadScheme, can_sort,
};

#[derive(Debug)]
pub(super) struct PlanRepartition;

#[async_trait]
impl NodePlanner for PlanRepartition {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(repartition) = node.as_any().downcast_ref::<RepartitionNode>() else {
            return Ok(None);
        };
        let config = session.config();
        let schema = inputs[0].schema();
        let key = |index: usize| Arc::new(Column::new(schema.field(index).name(), index)) as Arc<dyn PhysicalExpr>;
        let keys = || repartition.key_indices().into_iter().map(key);
        let (input, partitions) = (Arc::clone(&inputs[0]), config.target_partitions());
        let exchange = match *repartition.into() {
            Repartitioning::Blocks { num_blocks, shuffle: true } => {
                ExchangeExec::new(input, SpreadScheme { num_blocks }, partitions)
            }
            Repartitioning::Blocks { num_blocks, shuffle: false } => {
                ExchangeExec::new(input, SliceScheme { num_blocks }, partitions)
            }
            Repartitioning::Rows { target_num_rows_per_block: rows, strict } => {
                ExchangeExec::new(input, SizeScheme(BlockSize::Rows { rows, strict }), partitions)
            }
            Repartitioning::Bytes { target_bytes_per_block } => {
                ExchangeExec::new(input, SizeScheme(BlockSize::Bytes(target_bytes_per_block)), partitions)
            }
            Repartitioning::Keys { num_blocks, sort, .. } => {
                // Where the order counts later, it must not be that of runs, of which there are as many as memory asks
                // for.
                let sort = sort || BlockyardOptions::from_config(session.config_options()).prefer_resumable_plans;
                ExchangeExec::new(input, HashScheme { keys: keys().collect(), num_blocks, sort }, partitions)
            }
            Repartitioning::Ranges { ref boundaries, .. } => {
                let options = SortOptions { descending: false, nulls_first: false };
                let Some(order) = LexOrdering::new(keys().map(|key| PhysicalSortExpr::new(key, options))) else {
                    return internal_err!("ranges without a key");
                };
                if !can_sort(&order, &schema) {
                    return not_impl_err!("rows cannot be sorted by {order}");
                }
                let boundaries = Some(boundaries.clone());
                ExchangeExec::new(input, RangeScheme { order, boundaries }, partitions)
            }
        };
        Ok(Some(exchange.into_plan()))
    }
}
