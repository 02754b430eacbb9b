//! Reserves memory for what an operator of DataFusion keeps without counting it: a window over whole partitions holds all of
//! its input, and joins it into one batch.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions};
use futures::StreamExt;

use super::tasks::stream_of;
use crate::block::sliced_bytes;

/// How often a window holds its input: as it came, and joined.
pub(super) const COPIES: usize = 2;

/// Passes batches on and reserves memory for all of them, until the operator above ends. Fails with an error that names
/// that operator when there is not enough.
#[derive(Debug)]
pub(crate) struct ReserveExec {
    input: Arc<dyn ExecutionPlan>,
    operator: String,
}

impl ReserveExec {
    /// Reserves memory for `operator`, which keeps all of `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, operator: String) -> Self {
        Self { input, operator }
    }

    pub(crate) fn operator(&self) -> &str {
        &self.operator
    }
}

impl DisplayAs for ReserveExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "for={}", self.operator),
            _ => write!(f, "ReserveExec: for={}", self.operator),
        }
    }
}

impl ExecutionPlan for ReserveExec {
    fn name(&self) -> &str {
        "ReserveExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0), self.operator.clone())))
    }

    without_expressions!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let consumer = MemoryConsumer::new(format!("{}[{partition}]", self.operator));
        let reservation = consumer.register(context.memory_pool());
        let batches = self.input.execute(partition, context)?;
        // The operator holds its input stream, and with it the reservation, until it ends itself.
        let reserved = batches.map(move |batch| {
            let batch = batch?;
            reservation.try_grow(COPIES * sliced_bytes(&batch))?;
            Ok(batch)
        });
        Ok(stream_of(self.schema(), reserved.boxed()))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
