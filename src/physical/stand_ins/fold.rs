//! Folds hash partitions into fewer, so that an aggregate has many small tables instead of one large one per thread.
//!
//! An aggregate's table doubles when it is full, and for a moment it is there three times over. With one table per
//! thread all double at the same moment, so that half of the memory can never be used. Of many small ones few double at
//! once.
//!
//! ```text
//! partitions of the input   0 1 2 3 4 5 6 7
//! partition 0               0   2   4   6
//! partition 1                 1   3   5   7
//! ```
//!
//! A row is in partition `hash % 8`, so it is in `hash % 8 % 2`, which is `hash % 2`: what is folded is partitioned as
//! if there never had been more partitions.

use crate::physical::operator::IntoPlan;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::{Stream, StreamExt};

use crate::physical::operator::Operator;
use crate::physical::operator::claims;
use crate::physical::rows_of_input;
use crate::physical::tasks::stream_of;

/// The same rows in fewer hash partitions.
#[derive(Debug)]
pub(crate) struct FoldExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl FoldExec {
    /// Folds the hash partitions of `input` into `partitions`, of which theirs is a multiple.
    pub(crate) fn try_new(input: Arc<dyn ExecutionPlan>, partitions: usize) -> Result<Self> {
        let Partitioning::Hash(keys, many) = input.output_partitioning() else {
            return internal_err!("{} is not partitioned by a hash", input.name());
        };
        if partitions == 0 || many % partitions != 0 {
            return internal_err!("{many} partitions cannot be folded into {partitions}");
        }
        let partitioning = Partitioning::Hash(keys.clone(), partitions);
        let known = claims::of_rows(input.as_ref());
        let properties = PlanProperties::new(known, partitioning, input.pipeline_behavior(), input.boundedness());
        Ok(Self { input, properties: Arc::new(properties) })
    }

    fn partitions(&self) -> usize {
        self.properties.output_partitioning().partition_count()
    }
}

impl Operator for FoldExec {
    fn name(&self) -> &'static str {
        "FoldExec"
    }

    fn describe(&self) -> String {
        format!("partitions={}", self.partitions())
    }

    fn describe_in_tree(&self) -> String {
        self.describe()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::try_new(inputs.swap_remove(0), self.partitions())?.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let many = self.input.output_partitioning().partition_count();
        let inputs = (partition..many).step_by(self.partitions());
        let inputs = inputs.map(|input| self.input.execute(input, Arc::clone(&context))).collect::<Result<_>>()?;
        Ok(stream_of(self.schema(), Folded { inputs, giving: false }.boxed()))
    }

    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// Streams that take in all of their rows before they give one. All are polled until the first gives; then its input
/// has ended, as have those of the others, which come one after the other: each has the memory of those before it.
struct Folded {
    inputs: Vec<SendableRecordBatchStream>,
    /// Whether the last of them gives rows.
    giving: bool,
}

impl Stream for Folded {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { inputs, giving } = &mut *self;
        while *giving && let Some(input) = inputs.last_mut() {
            match ready!(input.poll_next_unpin(cx)) {
                Some(batch) => return Poll::Ready(Some(batch)),
                None => drop(inputs.pop()),
            }
        }
        let mut index = 0;
        while index < inputs.len() {
            match inputs[index].poll_next_unpin(cx) {
                Poll::Pending => index += 1,
                Poll::Ready(None) => drop(inputs.swap_remove(index)),
                Poll::Ready(Some(batch)) => {
                    let last = inputs.len() - 1;
                    inputs.swap(index, last);
                    *giving = true;
                    return Poll::Ready(Some(batch));
                }
            }
        }
        match inputs.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;
    use datafusion::common::exec_err;
    use futures::stream::{self, BoxStream};
    use futures::{FutureExt, TryStreamExt};
    use tokio::sync::oneshot;

    fn batch(number: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![number])) as ArrayRef)]).unwrap()
    }

    fn folded(inputs: Vec<BoxStream<'static, Result<RecordBatch>>>) -> Folded {
        let inputs = inputs.into_iter().map(|input| stream_of(batch(0).schema(), input)).collect();
        Folded { inputs, giving: false }
    }

    async fn numbers(folded: Folded) -> Vec<i64> {
        let batches: Vec<_> = folded.try_collect().await.unwrap();
        batches.iter().map(|batch| batch.column(0).as_primitive::<Int64Type>().value(0)).collect()
    }

    #[tokio::test]
    async fn all_are_polled_until_one_gives_and_then_that_one_to_its_end() {
        let (send, receive) = oneshot::channel();
        let waits = receive.map(|_sent| stream::iter([Ok(batch(1)), Ok(batch(2))])).flatten_stream();
        let gives = stream::once(async move {
            send.send(()).unwrap();
            Ok(batch(3))
        });
        let gives = gives.chain(stream::iter([Ok(batch(4))]));
        let empty = stream::empty();
        assert_eq!(numbers(folded(vec![waits.boxed(), empty.boxed(), gives.boxed()])).await, [3, 4, 1, 2]);
        assert_eq!(numbers(folded(Vec::new())).await, [0; 0]);
    }

    #[tokio::test]
    async fn an_error_of_one_is_an_error_of_all() {
        let fails = stream::iter([Ok(batch(1)), exec_err!("no more")]);
        let result: Result<Vec<_>> = folded(vec![stream::pending().boxed(), fails.boxed()]).try_collect().await;
        assert!(result.unwrap_err().to_string().contains("no more"));
    }
}
