//! `ZipNode` -> `ZipExec`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::config::SessionConfig;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::ZipNode;
use crate::physical::ZipExec;

#[derive(Debug)]
pub(super) struct PlanZip;

impl NodePlanner for PlanZip {
    fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _config: &SessionConfig,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !node.as_any().is::<ZipNode>() {
            return Ok(None);
        }
        let schema = Arc::new(node.schema().as_arrow().clone());
        Ok(Some(Arc::new(ZipExec::new(Arc::clone(&inputs[0]), Arc::clone(&inputs[1]), schema))))
    }
}
