//! `PartNode` -> `PartExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::PartNode;
use crate::physical::{IntoPlan, PartExec};

#[derive(Debug)]
pub(super) struct PlanPart;

#[async_trait]
impl NodePlanner for PlanPart {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let node = node.as_any().downcast_ref::<PartNode>();
        Ok(node.map(|node| PartExec::new(inputs.to_vec(), node.part().clone()).into_plan()))
    }
}
