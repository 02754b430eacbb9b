//! `LocalShuffleNode` -> `LocalShuffleExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::LocalShuffleNode;
use crate::physical::{IntoPlan, LocalShuffleExec};

#[derive(Debug)]
pub(super) struct PlanLocalShuffle;

#[async_trait]
impl NodePlanner for PlanLocalShuffle {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<LocalShuffleNode>() else {
            return Ok(None);
        };
        let rows = node.rows() as u64;
        Ok(Some(LocalShuffleExec::new(Arc::clone(&inputs[0]), rows, node.seed().value()).into_plan()))
    }
}
