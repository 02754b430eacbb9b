//! Rows of a statement on their way into a table of the store: all of them become visible at once, or none.

use crate::physical::operator::IntoPlan;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::block::Block;
use crate::physical::memory::block_bytes;
use crate::physical::operator::InputOrder;
use crate::physical::operator::Operator;
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::ungathered;
use crate::physical::tasks::{block_stream, properties, stream_of};
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, QueryPool};

/// Where the blocks of a statement go.
pub(crate) trait BlockTarget: fmt::Debug + fmt::Display + Send + Sync {
    /// A block as it is stored, and how many of its rows the statement has changed. An error ends the statement.
    fn prepare(&self, block: Block) -> Result<(Block, usize)>;

    /// Makes the blocks visible, in this order; `changed` of their rows were changed. Nothing is visible after an
    /// error. Returns the number of rows that the statement reports.
    fn commit<'a>(
        &'a self,
        blocks: Vec<BlockHandle>,
        changed: usize,
        context: &'a Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<usize>>;
}

/// Stores its input and returns the number of rows that have changed.
#[derive(Debug)]
pub(crate) struct StoreExec {
    input: Arc<dyn ExecutionPlan>,
    input_order: InputOrder,
    target: Arc<dyn BlockTarget>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl StoreExec {
    /// Stores `input` in `target`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, target: Arc<dyn BlockTarget>) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new("count", DataType::UInt64, false)]));
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Final);
        let input_order = InputOrder::of(input.as_ref());
        Self { input, input_order, target, properties, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl Operator for StoreExec {
    fn name(&self) -> &'static str {
        "StoreExec"
    }

    fn describe(&self) -> String {
        self.target.to_string()
    }

    fn describe_in_tree(&self) -> String {
        self.target.to_string()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        vec![&self.input_order]
    }

    /// As DataFusion's sinks say too: else a sort by columns that are not among the result would be dropped.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = Self::new(inputs.swap_remove(0), Arc::clone(&self.target));
        Ok(Self { input_order: self.input_order.clone(), ..plan }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("StoreExec has one partition, not {partition}");
        }
        let (input, target) = (Arc::clone(&self.input), Arc::clone(&self.target));
        let rows = MetricBuilder::new(&self.metrics).output_rows(0);
        let schema = self.schema();
        let count = stream::once(async move {
            let (blocks, changed) = collect(&input, &target, &context).await?;
            let count = target.commit(blocks, changed, &context).await?;
            rows.add(count);
            Ok(RecordBatch::try_new(schema, vec![Arc::new(UInt64Array::from(vec![count as u64]))])?)
        });
        Ok(stream_of(self.schema(), count.boxed()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn stores_rows(&self) -> bool {
        true
    }
}

/// All blocks in the order of the input, as they are stored, and how many of their rows were changed.
async fn collect(
    input: &Arc<dyn ExecutionPlan>,
    target: &Arc<dyn BlockTarget>,
    context: &Arc<TaskContext>,
) -> Result<(Vec<BlockHandle>, usize)> {
    let input = ungathered(input);
    let store = BlockStore::of_task(context)?;
    let owner = Arc::new(Owner::default());
    owner.describe(QueryPool::query_of(context), || "Materialize".to_owned());
    let balance = RowBalance::new(target.to_string(), context);
    let bytes = block_bytes(context)?;
    let mut drivers = Vec::new();
    for partition in 0..input.output_partitioning().partition_count() {
        let mut blocks = block_stream(input, partition, Arc::clone(context), bytes)?;
        let (store, owner, target) = (Arc::clone(&store), Arc::clone(&owner), Arc::clone(target));
        let balance = Arc::clone(&balance);
        drivers.push(async move {
            let mut stored = Vec::new();
            while let Some((id, block)) = blocks.try_next().await? {
                balance.take(block.num_rows());
                let (block, changed) = target.prepare(block)?;
                stored.push((id, store.put(block, NextUse::Kept, &owner)?, changed));
            }
            Ok(stored)
        });
    }
    let mut stored: Vec<_> = Drivers::start(drivers).finish().await?.into_iter().flatten().collect();
    stored.sort_by(|a, b| a.0.cmp(&b.0));
    balance.give(stored.iter().map(|(_, handle, _)| handle.metadata().num_rows).sum());
    balance.check()?;
    let changed = stored.iter().map(|(_, _, changed)| changed).sum();
    Ok((stored.into_iter().map(|(_, handle, _)| handle).collect(), changed))
}
