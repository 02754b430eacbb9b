//! `RepartitionNode` -> `ExchangeExec`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::config::SessionConfig;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::RepartitionNode;
use crate::physical::{ExchangeExec, ExchangeScheme};

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
        let num_blocks = repartition.num_blocks();
        let scheme = match repartition.shuffle() {
            true => ExchangeScheme::Spread { num_blocks },
            false => ExchangeScheme::Slices { num_blocks },
        };
        Ok(Some(Arc::new(ExchangeExec::new(Arc::clone(&inputs[0]), scheme, config.target_partitions()))))
    }
}
