//! `RandomizeBlocksNode` -> `ExchangeExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::RandomizeBlocksNode;
use crate::physical::{BlockOrderScheme, ExchangeExec, IntoPlan};

#[derive(Debug)]
pub(super) struct PlanRandomizeBlocks;

#[async_trait]
impl NodePlanner for PlanRandomizeBlocks {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(randomize) = node.as_any().downcast_ref::<RandomizeBlocksNode>() else {
            return Ok(None);
        };
        let config = session.config();
        let scheme = BlockOrderScheme { seed: randomize.seed().value(), window: randomize.window() };
        Ok(Some(ExchangeExec::new(Arc::clone(&inputs[0]), scheme, config.target_partitions()).into_plan()))
    }
}
