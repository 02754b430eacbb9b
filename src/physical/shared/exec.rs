//! [`SharedExec`].

use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType, reset_plan_states};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt};

use super::SharedRows;
use crate::physical::operator::{InputsWork, IntoPlan, Operator, Retention, Starts};
use crate::physical::tasks::stream_of;

/// The rows of its input, which others of the plan read, too, once it is linked with them. Streams and orders are those
/// of the input.
#[derive(Debug)]
pub(crate) struct SharedExec {
    input: Arc<dyn ExecutionPlan>,
    number: usize,
    reads: Option<Reader>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// One of those that read the rows.
#[derive(Debug)]
struct Reader {
    rows: Arc<SharedRows>,
    number: usize,
}

impl SharedExec {
    /// The rows of `input`, of which there are others with this number.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, number: usize) -> Self {
        let properties = Arc::clone(input.properties());
        Self { input, number, reads: None, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// One more reader of `rows`.
    pub(crate) fn linked(number: usize, rows: &Arc<SharedRows>) -> Self {
        let anew = Self::new(Arc::clone(rows.plan()), number);
        let properties = anew.properties.as_ref().clone().with_emission_type(EmissionType::Final);
        let reads = Some(Reader { rows: Arc::clone(rows), number: rows.add_reader() });
        Self { reads, properties: Arc::new(properties), ..anew }
    }

    /// Which of the plans that a query has several times it is.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// What it reads.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Whether another one runs the input.
    fn is_run_by_another(&self) -> bool {
        self.reads.as_ref().is_some_and(|reader| reader.number > 0)
    }
}

impl Operator for SharedExec {
    fn name(&self) -> &'static str {
        "SharedExec"
    }

    fn describe(&self) -> String {
        match &self.reads {
            Some(reader) => format!("plan={}, reader={}", self.number, reader.number + 1),
            None => format!("plan={}", self.number),
        }
    }

    fn describe_in_tree(&self) -> String {
        self.describe().replace(", ", "\n")
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        // Over another input it is on its own, until it is linked again. What was linked had one input, of which each
        // now has a copy: DataFusion's joins would share the rows of one side.
        let input = inputs.swap_remove(0);
        let input = if self.reads.is_some() { reset_plan_states(input)? } else { input };
        Ok(Self::new(input, self.number).into_plan())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = match &self.reads {
            Some(reader) => reader.rows.read(reader.number, partition, &context)?,
            None => self.input.execute(partition, context)?,
        };
        let count = MetricBuilder::new(&self.metrics).output_rows(partition);
        let counted = rows.inspect_ok(move |batch| count.add(batch.num_rows()));
        Ok(stream_of(self.schema(), counted.boxed()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
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

    fn plans_that_ran(&self) -> Option<Vec<(String, Arc<dyn ExecutionPlan>)>> {
        self.is_run_by_another().then(Vec::new)
    }

    fn inputs_work(&self) -> InputsWork {
        match self.is_run_by_another() {
            true => InputsWork::SeveralOfIt(0),
            false => InputsWork::InputOverlap,
        }
    }

    fn starts(&self) -> Starts {
        Starts::WhenAsked
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: true }
    }
}
