//! `RepartitionNode` -> `ExchangeExec`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::config::SessionConfig;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::{RepartitionNode, Repartitioning};
use crate::physical::{BlockSize, ExchangeExec, ExchangeScheme};

#[derive(Debug)]
pub(super) struct PlanRepartition;

impl NodePlanner for PlanRepartition {
    fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        config: &SessionConfig,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(repartition) = node.as_any().downcast_ref::<RepartitionNode>() else {
            return Ok(None);
        };
        let scheme = match *repartition.into() {
            Repartitioning::Blocks { num_blocks, shuffle: true } => ExchangeScheme::Spread { num_blocks },
            Repartitioning::Blocks { num_blocks, shuffle: false } => ExchangeScheme::Slices { num_blocks },
            Repartitioning::Rows { target_num_rows_per_block: rows, strict } => {
                ExchangeScheme::Sized(BlockSize::Rows { rows, strict })
            }
            Repartitioning::Bytes { target_bytes_per_block } => {
                ExchangeScheme::Sized(BlockSize::Bytes(target_bytes_per_block))
            }
            Repartitioning::Keys { num_blocks, sort, .. } => {
                let schema = inputs[0].schema();
                let key = |index: usize| Arc::new(Column::new(schema.field(index).name(), index)) as _;
                ExchangeScheme::Hash {
                    keys: repartition.key_indices().into_iter().map(key).collect(),
                    num_blocks,
                    sort,
                }
            }
        };
        Ok(Some(Arc::new(ExchangeExec::new(Arc::clone(&inputs[0]), scheme, config.target_partitions()))))
    }
}
