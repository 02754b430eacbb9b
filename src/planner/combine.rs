//! `ZipNode`, `MixNode` -> `CombineExec`.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::logical::{MixNode, MixOptions, MixStoppingCondition, ZipNode};
use crate::physical::{Combination, CombineExec, IntoPlan};

#[derive(Debug)]
pub(super) struct PlanCombinations;

#[async_trait]
impl NodePlanner for PlanCombinations {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let how = match (node.as_any().is::<ZipNode>(), node.as_any().downcast_ref::<MixNode>()) {
            (true, _) => Combination::Zip,
            (_, Some(mix)) => {
                let MixOptions { weights, stopping_condition } = mix.options().clone();
                Combination::Mix { weights, until_shortest: stopping_condition == MixStoppingCondition::Shortest }
            }
            _ => return Ok(None),
        };
        let schema = Arc::new(node.schema().as_arrow().clone());
        Ok(Some(CombineExec::new(inputs.to_vec(), how, schema).into_plan()))
    }
}
