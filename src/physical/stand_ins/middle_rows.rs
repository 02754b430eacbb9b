//! The rows in the middle of an order, of which a median is made: out of core, where an aggregate would keep all
//! values.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use crate::physical::memory::block_bytes;
use crate::physical::operator::{Operator, Retention};
use crate::physical::tasks::{block_stream, properties, stream_of};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, QueryPool};

/// Of rows in the order of a value, nulls last, the one in the middle of those that have a value, or the two.
#[derive(Debug)]
pub(crate) struct MiddleRowsExec {
    input: Arc<dyn ExecutionPlan>,
    order: LexOrdering,
    properties: Arc<PlanProperties>,
}

impl MiddleRowsExec {
    /// Those of `input`, which is in one partition and in this order. Its first expression gives the value.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, order: LexOrdering) -> Self {
        let known = EquivalenceProperties::new(input.schema());
        Self { properties: properties(known, 1, EmissionType::Final), input, order }
    }
}

impl Operator for MiddleRowsExec {
    fn name(&self) -> &'static str {
        "MiddleRowsExec"
    }

    fn describe(&self) -> String {
        format!("order=[{}]", self.order)
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.order.clone()).into_plan())
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![Some(OrderingRequirements::from(self.order.clone()))]
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("MiddleRowsExec has one partition, not {partition}");
        }
        let (input, value) = (Arc::clone(&self.input), Arc::clone(&self.order.first().expr));
        let middle = stream::once(async move { middle_rows(&input, value.as_ref(), context).await }).try_flatten();
        Ok(stream_of(self.schema(), middle.boxed()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: true }
    }
}

/// Stores all rows, and reads those in the middle again.
async fn middle_rows(
    input: &Arc<dyn ExecutionPlan>,
    value: &dyn PhysicalExpr,
    context: Arc<TaskContext>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let store = BlockStore::of_task(&context)?;
    let owner = Arc::new(Owner::default());
    owner.describe(QueryPool::query_of(&context), || "MiddleRows".to_owned());
    let mut blocks = block_stream(input, 0, Arc::clone(&context), block_bytes(&context)?)?;
    let (mut stored, mut values): (Vec<BlockHandle>, usize) = (Vec::new(), 0);
    while let Some((_, block)) = blocks.try_next().await? {
        for batch in block.batches() {
            let array = value.evaluate(batch)?.into_array(batch.num_rows())?;
            values += array.len() - array.logical_null_count();
        }
        stored.push(store.put(block, NextUse::Kept, &owner)?);
    }
    let mut rows = Vec::new();
    let wanted = values.saturating_sub(1) / 2..values / 2 + 1;
    let mut first = 0;
    for handle in &stored {
        for (index, batch_rows) in handle.batch_rows().iter().enumerate() {
            let (from, to) = (wanted.start.max(first), wanted.end.min(first + batch_rows).min(values));
            if from < to {
                rows.push(Ok(handle.get_batch(index)?.slice(from - first, to - from)));
            }
            first += batch_rows;
        }
    }
    Ok(stream::iter(rows).boxed())
}
