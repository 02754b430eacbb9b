//! `SharedNode` -> `SharedExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::SharedNode;
use crate::physical::{IntoPlan, SharedExec};

#[derive(Debug)]
pub(super) struct PlanShared;

#[async_trait]
impl NodePlanner for PlanShared {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<SharedNode>() else { return Ok(None) };
        if node.is_alone() {
            return Ok(Some(Arc::clone(&inputs[0])));
        }
        Ok(Some(SharedExec::new(Arc::clone(&inputs[0]), node.number()).into_plan()))
    }
}
