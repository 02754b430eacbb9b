//! Cuts batches that are too large, and copies slices that drag a large buffer along, so that whoever counts them
//! counts what they hold.
//!
//! DataFusion's operators count a batch by the capacity of all its buffers. A sort or an aggregate gives its result as
//! slices of one large batch, and a batch that was read back from a spill file has all its columns in one buffer: each
//! is counted many times over, and the operator above fails for want of memory that nobody uses.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::block::{copied, pieces, sliced_bytes};
use crate::physical::operator::Operator;
use crate::physical::tasks::stream_of;
use crate::store::BlockStore;

/// A batch is left as it is when its buffers are at most this many times what its rows take,
const MAX_WASTE: usize = 2;
/// or this part of the memory.
const SMALL_PART: usize = 256;

/// The same rows, with buffers of their own where they were slices of much larger ones.
#[derive(Debug)]
pub(crate) struct CompactExec {
    input: Arc<dyn ExecutionPlan>,
}

impl CompactExec {
    /// Compacts the batches of `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { input }
    }
}

impl Operator for CompactExec {
    fn name(&self) -> &'static str {
        "CompactExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let most = BlockStore::of_task(&context)?.budget().limit() / SMALL_PART;
        let rows = context.session_config().batch_size();
        let batches = self.input.execute(partition, context)?;
        let compacted = batches
            .map_ok(move |batch| stream::iter(pieces(batch, rows)).map(move |batch| compact(batch, most)))
            .try_flatten();
        Ok(stream_of(self.schema(), compacted.boxed()))
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

fn compact(batch: RecordBatch, most: usize) -> Result<RecordBatch> {
    let counted = batch.get_array_memory_size();
    if counted <= most || counted <= MAX_WASTE * sliced_bytes(&batch) {
        return Ok(batch);
    }
    copied(&batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};

    #[test]
    fn slices_of_large_batches_are_copied_and_others_are_not() {
        let words = StringArray::from_iter_values((0..10_000).map(|i| format!("word {i}")));
        let numbers = Int64Array::from_iter_values(0..10_000);
        let columns = [("w", Arc::new(words) as ArrayRef), ("n", Arc::new(numbers) as _)];
        let whole = RecordBatch::try_from_iter(columns).unwrap();
        let slice = whole.slice(100, 10);
        let small = compact(slice.clone(), 1000).unwrap();
        assert_eq!(small, slice);
        assert!(small.get_array_memory_size() < 2000, "{}", small.get_array_memory_size());
        let counted = |batch: &RecordBatch| batch.get_array_memory_size();
        assert_eq!(counted(&compact(slice.clone(), usize::MAX).unwrap()), counted(&slice));
        assert_eq!(counted(&compact(whole.clone(), 1000).unwrap()), counted(&whole));
    }
}
