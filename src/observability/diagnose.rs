//! Adds the bottleneck to what EXPLAIN ANALYZE prints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, stream};

use super::bottleneck::bottleneck;
use crate::physical::{IntoPlan, Operator, stream_of};

/// Runs an `AnalyzeExec`, and then says what took the time of the plan below it.
#[derive(Debug)]
pub(crate) struct DiagnoseExec {
    input: Arc<dyn ExecutionPlan>,
}

impl DiagnoseExec {
    /// Above `analyze`.
    pub(crate) fn new(analyze: Arc<dyn ExecutionPlan>) -> Self {
        Self { input: analyze }
    }
}

impl Operator for DiagnoseExec {
    fn name(&self) -> &'static str {
        "DiagnoseExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (schema, input) = (self.schema(), Arc::clone(&self.input));
        let (started, threads) = (Instant::now(), context.session_config().target_partitions());
        let analyzed = self.input.execute(partition, context)?;
        let of = Arc::clone(&schema);
        let sentence = stream::once(async move {
            let plan = input.downcast_ref::<AnalyzeExec>().map_or(&input, AnalyzeExec::input);
            let sentence = bottleneck(plan.as_ref(), started.elapsed(), Duration::ZERO, threads);
            let columns = ["Bottleneck", sentence.as_str()].into_iter().zip(of.fields()).map(|(text, field)| {
                Ok(cast(&(Arc::new(StringArray::from(vec![text])) as ArrayRef), field.data_type())?)
            });
            Ok(RecordBatch::try_new(Arc::clone(&of), columns.collect::<Result<_>>()?)?)
        });
        // What is analyzed has run when its text is there.
        Ok(stream_of(schema, analyzed.chain(sentence).boxed()))
    }
}
