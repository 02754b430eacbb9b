//! The inputs of a union one after the other, where memory is too short for all of them at once.
//!
//! ```text
//! UnionExec     input 0 ──────          all are polled at once, and each holds what it works on
//!               input 1 ──────
//!
//! TurnsExec     input 0 ── input 1 ──   an input starts when the one before has given back what it held
//! ```
//!
//! Tasks have the ids that they have in the union, so that rows come in the same order, and belong to the same blocks.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::physical::StageMetrics;
use crate::physical::operator::claims;
use crate::physical::operator::{InputOverlap, InputsWork, Operator, Starts};
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::tasks::{Task, TaskStream, all_tasks, execute_tasks, is_ordered, properties};

/// The rows of a union in one stream.
#[derive(Debug)]
pub(crate) struct TurnsExec {
    /// Whose inputs these are.
    union: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl TurnsExec {
    /// The rows of `union`, a [`UnionExec`].
    pub(crate) fn new(union: Arc<dyn ExecutionPlan>) -> Self {
        let properties = properties(claims::of_rows(union.as_ref()), 1, EmissionType::Incremental);
        Self { union, properties, stage: StageMetrics::default() }
    }
}

impl Operator for TurnsExec {
    fn name(&self) -> &'static str {
        "TurnsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.union.children()
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(UnionExec::try_new(inputs)?).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn input_statistics(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        self.union.child_stats_requests(None)
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.union.statistics_from_inputs(inputs, &StatisticsArgs::new())
    }

    fn inputs_work(&self) -> InputsWork {
        InputsWork::InTurn
    }

    fn starts(&self) -> Starts {
        Starts::WhenAsked
    }

    fn brings_together(&self) -> InputOverlap {
        InputOverlap::AfterEachOther
    }
}

impl TaskPlan for TurnsExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let inputs: Vec<_> = self.inputs().into_iter().cloned().enumerate().collect();
        let tasks = stream::iter(inputs).map(move |(index, input)| {
            // Nothing of an input is executed before its turn.
            let tasks = all_tasks(&input, Arc::clone(&context), None)?;
            let of_input = move |task: Task| Task { id: task.id.within(index), ..task };
            Ok::<_, DataFusionError>(tasks.map_ok(of_input))
        });
        Ok(tasks.try_flatten().boxed())
    }

    fn stage_name(&self) -> String {
        "Turns".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn is_ordered(&self) -> bool {
        self.inputs().into_iter().all(|child| is_ordered(child.as_ref()))
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OfInputs
    }
}
