//! [`MapExec`]: the one operator of the map family.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::StreamExt;

use super::{MapStep, StepTask};
use crate::functions::Compute;
use crate::physical::StageMetrics;
use crate::physical::operator::InputOrder;
use crate::physical::operator::Operator;
use crate::physical::operator::claims;
use crate::physical::operator::{Preparation, TaskIdentity, TaskPlan};
use crate::physical::read::ReadFiles;
use crate::physical::tasks::Executions;
use crate::physical::tasks::StageRows;
use crate::physical::tasks::{
    Task, TaskStream, as_task_plan, execute_tasks, is_ordered, owner_of, planned_blocks, properties, task_stream,
    unmeasured_tasks,
};
use crate::runtime::OpId;

/// Runs the tasks of its input through a list of steps, all of them in one go.
#[derive(Debug)]
pub(crate) struct MapExec {
    input: Arc<dyn ExecutionPlan>,
    steps: Vec<Arc<dyn MapStep>>,
    compute: Compute,
    input_order: InputOrder,
    /// Whether the input belongs to the same stage.
    fused: bool,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    /// What the steps of each execution have seen.
    rows: Executions<StageRows>,
}

impl MapExec {
    /// A stage of its own, above `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, steps: Vec<Arc<dyn MapStep>>, compute: Compute) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = properties(claims::of_steps(&input, &steps), partitions, EmissionType::Incremental);
        let input_order = InputOrder::of(input.as_ref());
        Self {
            input,
            steps,
            compute,
            input_order,
            fused: false,
            properties,
            stage: StageMetrics::default(),
            rows: Executions::default(),
        }
    }

    /// The same stage with its input in it.
    pub(crate) fn fused(mut self) -> Self {
        self.fused = true;
        self
    }

    /// The tasks, through all steps.
    fn run_steps(&self, tasks: TaskStream, partition: usize, context: Arc<TaskContext>) -> TaskStream {
        let (steps, log, rows) = (self.steps.clone(), self.stage.failures(), self.rows.join(partition, &context));
        let (read, owner) = (self.files(), owner_of(self, &context));
        let run = move |Task { id, mut batches, input }: Task| {
            for (place, step) in steps.iter().enumerate() {
                let (context, log, owner) = (Arc::clone(&context), Arc::clone(&log), Arc::clone(&owner));
                let files = read.as_ref().and_then(|read| read.of_block(&id));
                let task = StepTask { id: id.clone(), context, log, rows: rows.of_step(place), owner, files };
                batches = step.run(batches, task)?;
            }
            Ok(Task { id, batches, input })
        };
        tasks.map(move |task| task.and_then(&run)).boxed()
    }

    /// What the steps read.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What each task runs, in order.
    pub(crate) fn steps(&self) -> &[Arc<dyn MapStep>] {
        &self.steps
    }

    /// Resources and concurrency.
    pub(crate) fn compute(&self) -> &Compute {
        &self.compute
    }
}

impl Operator for MapExec {
    fn name(&self) -> &'static str {
        "MapExec"
    }

    fn describe(&self) -> String {
        format!("{}{}", self.stage_name(), self.compute)
    }

    fn describe_in_tree(&self) -> String {
        self.stage_name().replace("->", "->\n")
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        vec![&self.input_order]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut plan = Self::new(inputs.swap_remove(0), self.steps.clone(), self.compute.clone());
        plan.input_order = self.input_order.clone();
        plan.fused = self.fused && as_task_plan(plan.input.as_ref()).is_some();
        Ok(plan.into_plan())
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.steps.iter().flat_map(|step| step.expressions()), f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        use CardinalityEffect::{Equal, LowerEqual, Unknown};
        self.steps.iter().fold(Equal, |all, step| match (all, step.cardinality()) {
            (Equal, Equal) => Equal,
            (Equal | LowerEqual, Equal | LowerEqual) => LowerEqual,
            _ => Unknown,
        })
    }
}

impl TaskPlan for MapExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        Ok(self.run_steps(task_stream(&self.input, partition, Arc::clone(&context))?, partition, context))
    }

    fn all_tasks(&self, context: Arc<TaskContext>, consumer: Option<OpId>) -> Result<TaskStream> {
        Ok(self.run_steps(unmeasured_tasks(&self.input, Arc::clone(&context), consumer)?, 0, context))
    }

    fn stage_name(&self) -> String {
        let mut names: Vec<String> = self.steps.iter().map(|s| s.name()).collect();
        if self.fused
            && let Some(input) = as_task_plan(self.input.as_ref())
        {
            names.insert(0, input.stage_name());
        }
        names.join("->")
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn is_ordered(&self) -> bool {
        is_ordered(self.input.as_ref())
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OfInput { input: &self.input, is_whole: true }
    }

    fn planned_blocks(&self) -> Option<usize> {
        planned_blocks(&self.input)
    }

    fn files(&self) -> Option<ReadFiles> {
        as_task_plan(self.input.as_ref()).and_then(TaskPlan::files)
    }

    fn compute(&self) -> Option<&Compute> {
        Some(&self.compute)
    }

    fn preparation(&self) -> Preparation {
        let steps = self.steps.clone();
        Arc::new(move || steps.iter().try_for_each(|step| step.prepare()))
    }

    fn unsteady_order(&self) -> Option<&'static str> {
        let changes = self.steps.iter().any(|step| !step.is_deterministic());
        changes.then_some("it calls a function that is not deterministic; write its rows to files, or materialize them")
    }

    fn keeps_row_numbers(&self) -> bool {
        self.steps.iter().all(|step| step.keeps_row_numbers())
    }

    fn is_fused(&self) -> bool {
        self.fused
    }
}
