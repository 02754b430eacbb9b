//! [`MapExec`]: the one operator of the map family.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties, ReplaceChildrenOptions,
};
use futures::StreamExt;

use super::{MapStep, StepTask};
use crate::functions::Compute;
use crate::physical::claims;
use crate::physical::executions::Executions;
use crate::physical::failures::StageRows;
use crate::physical::input_order::InputOrder;
use crate::physical::read_files::ReadFiles;
use crate::physical::tasks::{
    Task, TaskPlan, TaskStream, as_task_plan, execute_tasks, is_ordered, owner_of, properties, task_stream,
    unmeasured_tasks,
};
use crate::physical::{QueueExec, ReadExec, StageMetrics};
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
        let (read, owner) = (read_below(&self.input), owner_of(self, &context));
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

    /// Whether the input belongs to the same stage.
    pub(crate) fn is_fused(&self) -> bool {
        self.fused
    }
}

/// The read that the tasks of a plan come from, where each is a task of it.
fn read_below(plan: &Arc<dyn ExecutionPlan>) -> Option<ReadFiles> {
    if let Some(read) = plan.downcast_ref::<ReadExec>() {
        Some(read.files())
    } else if plan.is::<MapExec>() || plan.is::<QueueExec>() {
        plan.children().first().and_then(|input| read_below(input))
    } else {
        None
    }
}

impl DisplayAs for MapExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "{}", self.stage_name().replace("->", "->\n")),
            _ => write!(f, "MapExec: {}{}", self.stage_name(), self.compute),
        }
    }
}

impl ExecutionPlan for MapExec {
    fn name(&self) -> &str {
        "MapExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.input_order.ordering()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.input_order.distribution()
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
        let mut plan = Self::new(children.swap_remove(0), self.steps.clone(), self.compute.clone());
        plan.input_order = self.input_order.clone();
        plan.fused = self.fused && as_task_plan(plan.input.as_ref()).is_some();
        Ok(Arc::new(plan))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for expression in self.steps.iter().flat_map(|s| s.expressions()) {
            if f(expression)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        crate::physical::recompute_children(self, children)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.stage.metrics())
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
}
