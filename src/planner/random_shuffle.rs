//! `RandomShuffleNode` -> `ExchangeExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::RandomShuffleNode;
use crate::physical::{ExchangeExec, IntoPlan, RandomScheme};

#[derive(Debug)]
pub(super) struct PlanRandomShuffle;

#[async_trait]
impl NodePlanner for PlanRandomShuffle {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(shuffle) = node.as_any().downcast_ref::<RandomShuffleNode>() else {
            return Ok(None);
        };
        let config = session.config();
        let scheme = RandomScheme { seed: shuffle.seed().value(), num_blocks: shuffle.num_blocks() };
        Ok(Some(ExchangeExec::new(Arc::clone(&inputs[0]), scheme, config.target_partitions()).into_plan()))
    }
}
