//! `ResumeNode` -> `ResumeExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::ResumeNode;
use crate::physical::{IntoPlan, ResumeExec};

#[derive(Debug)]
pub(super) struct PlanResume;

#[async_trait]
impl NodePlanner for PlanResume {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let node = node.as_any().downcast_ref::<ResumeNode>();
        Ok(node.map(|node| ResumeExec::new(Arc::clone(&inputs[0]), node.token().clone()).into_plan()))
    }
}
