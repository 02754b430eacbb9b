//! `MapNode` -> `MapExec` with one step; fusion puts steps together later.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::logical_expr::UserDefinedLogicalNode;
use datafusion::physical_plan::ExecutionPlan;

use super::NodePlanner;
use crate::config::BlockyardOptions;
use crate::functions::BatchSize;
use crate::logical::{MapNode, MapOperator};
use crate::physical::{FunctionStep, IntoPlan, MapExec, MapStep, SampleStep};

#[derive(Debug)]
pub(super) struct PlanMap;

#[async_trait]
impl NodePlanner for PlanMap {
    async fn plan(
        &self,
        node: &dyn UserDefinedLogicalNode,
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(map) = node.as_any().downcast_ref::<MapNode>() else {
            return Ok(None);
        };
        let config = session.config();
        let input = Arc::clone(&inputs[0]);
        let target = BlockyardOptions::from_config(config.options()).block_bytes(config.target_partitions());
        let call = |function: &crate::functions::FunctionRef, batch_size| {
            let schema = Arc::new(node.schema().as_arrow().clone());
            let name = map.operator().name();
            FunctionStep::new(name, function.clone(), batch_size, target, input.schema(), schema)
                .with_failures(map.failures().clone())
                .with_max_concurrency(map.compute().max_concurrency)
        };
        let step: Arc<dyn MapStep> = match map.operator() {
            MapOperator::Batches(function, batch_size) => Arc::new(call(function, *batch_size)),
            MapOperator::Groups(function, keys, max_rows) => {
                let input = input.schema();
                let indices = keys.iter().map(|key| Ok(input.index_of(key)?)).collect::<Result<Vec<_>>>()?;
                Arc::new(call(function, BatchSize::AsTheyCome).with_groups(indices, max_rows.unwrap_or(usize::MAX)))
            }
            MapOperator::Rows(f) | MapOperator::FlatMap(f) | MapOperator::Filter(f) => {
                Arc::new(call(f, BatchSize::AsTheyCome))
            }
            MapOperator::Sample { fraction, seed, others } => {
                Arc::new(SampleStep::new(*fraction, *seed, *others, input.schema()))
            }
        };
        Ok(Some(MapExec::new(input, vec![step], map.compute().clone()).into_plan()))
    }
}
