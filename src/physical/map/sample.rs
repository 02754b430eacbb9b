//! Ray's `random_sample`: each row stays with the same probability, decided by the seed and where the row stands.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::{BooleanArray, RecordBatch};
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execution_plan::CardinalityEffect;

use super::push::{Push, push_stream};
use super::{MapStep, StepTask};
use crate::block::row_random;

/// Bernoulli sampling.
#[derive(Debug)]
pub(crate) struct SampleStep {
    fraction: f64,
    seed: u64,
    others: bool,
    schema: SchemaRef,
}

impl SampleStep {
    /// Keeps each row of `schema` with probability `fraction`, or the `others`.
    pub(crate) fn new(fraction: f64, seed: u64, others: bool, schema: SchemaRef) -> Self {
        Self { fraction, seed, others, schema }
    }
}

impl MapStep for SampleStep {
    fn name(&self) -> String {
        format!("RandomSample({}{})", if self.others { "not " } else { "" }, self.fraction)
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn cardinality(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn said(&self) -> Option<String> {
        Some(format!("{}, seed={}", self.name(), self.seed))
    }

    fn is_random(&self) -> bool {
        true
    }

    fn run(&self, batches: SendableRecordBatchStream, task: StepTask) -> Result<SendableRecordBatchStream> {
        // 2^64 as a float: a random u64 is below fraction * 2^64 with probability `fraction`.
        let below = self.fraction * 18_446_744_073_709_551_616.0;
        let push = SamplePush { below, seed: self.seed, others: self.others, task: task.id.hash(), next_row: 0 };
        Ok(push_stream(Arc::clone(&self.schema), batches, &task, push))
    }
}

struct SamplePush {
    below: f64,
    seed: u64,
    others: bool,
    task: u64,
    next_row: u64,
}

impl Push for SamplePush {
    fn push(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        let first = self.next_row;
        self.next_row += batch.num_rows() as u64;
        let keep: BooleanArray = (first..self.next_row)
            .map(|row| Some(((row_random(self.seed, self.task, row) as f64) < self.below) != self.others))
            .collect();
        out.push_back(filter_record_batch(&batch, &keep)?);
        Ok(())
    }
}
