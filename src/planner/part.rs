//! `PartNode` -> `PartExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::config::BlockyardOptions;
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
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<PartNode>() else { return Ok(None) };
        if !BlockyardOptions::from_config(session.config_options()).preserve_order {
            return plan_err!(
                "parts of a dataset run one by one, and rows have no places with blockyard.preserve_order = false; set it \
                 to true"
            );
        }
        Ok(Some(PartExec::new(inputs.to_vec(), node.part().clone()).into_plan()))
    }
}
