//! [`ResumeExec`].

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::stream;

use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::StageMetrics;
use crate::physical::operator::{InputOrder, IntoPlan, Operator, TaskIdentity, TaskPlan, claims};
use crate::physical::place::{Inputs, Resumes, marked_rows, rows_of_marked};
use crate::physical::tasks::{Task, TaskStream, execute_tasks, owner_of, properties};
use crate::token::ResumeToken;

/// The rows of its input from a token on: one task.
#[derive(Debug)]
pub(crate) struct ResumeExec {
    input: Arc<dyn ExecutionPlan>,
    token: ResumeToken,
    input_order: InputOrder,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl ResumeExec {
    /// The rows of `input` that follow behind `token`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, token: ResumeToken) -> Self {
        let properties = properties(claims::of_rows(input.as_ref()), 1, EmissionType::Incremental);
        let input_order = InputOrder::of(input.as_ref());
        Self { input, token, input_order, properties, stage: StageMetrics::default() }
    }
}

impl Operator for ResumeExec {
    fn name(&self) -> &'static str {
        "ResumeExec"
    }

    fn describe(&self) -> String {
        format!("epoch={}, rows={}", self.token.epoch(), self.token.rows())
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let anew = Self::new(inputs.swap_remove(0), self.token.clone());
        Ok(Self { input_order: self.input_order.clone(), ..anew }.into_plan())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        vec![&self.input_order]
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}

impl TaskPlan for ResumeExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        Inputs::of(&self.input).check(&self.token)?;
        let resumes = Resumes::of(&BlockyardOptions::from_task(&context), &self.input);
        if let Resumes::DoesNot { .. } = resumes {
            return exec_err!("the query cannot go on at a resume token: it {resumes}");
        }
        let owner = owner_of(self, &context);
        let rows = marked_rows(&self.input, &context, &owner, &self.token.place, None)?;
        let task = Task::of_plan(TaskId::root(0), rows_of_marked(self.schema(), rows));
        Ok(Box::pin(stream::once(async move { Ok(task) })))
    }

    fn stage_name(&self) -> String {
        "Resume".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OneTask
    }
}
