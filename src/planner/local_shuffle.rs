//! `LocalShuffleNode` -> `LocalShuffleExec`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::config::SessionConfig;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::LocalShuffleNode;
use crate::physical::{IntoPlan, LocalShuffleExec};

#[derive(Debug)]
pub(super) struct PlanLocalShuffle;

impl NodePlanner for PlanLocalShuffle {
    fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _config: &SessionConfig,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<LocalShuffleNode>() else {
            return Ok(None);
        };
        let rows = node.rows() as u64;
        Ok(Some(LocalShuffleExec::new(Arc::clone(&inputs[0]), rows, node.seed().value()).into_plan()))
    }
}
