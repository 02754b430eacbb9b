//! The out queue behind a stage that the scheduler runs: its blocks wait in the store, two of each task at the most.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, stream};
use parking_lot::Mutex;

use super::run::{StageRun, Takers};
use super::stage::QueueLimit;
use crate::physical::StageMetrics;
use crate::physical::operator::InputOrder;
use crate::physical::operator::claims;
use crate::physical::operator::{Operator, Retention};
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::read::ReadFiles;
use crate::physical::rows_of_input;
use crate::physical::tasks::{Executions, Joined, RunState};
use crate::physical::tasks::{
    Task, TaskStream, as_task_plan, execute_tasks, is_ordered, owner_of, planned_blocks, properties,
};
use crate::runtime::OpId;

/// Ends one stage and starts another: every block of the input becomes a task.
#[derive(Debug)]
pub(crate) struct QueueExec {
    input: Arc<dyn ExecutionPlan>,
    input_order: InputOrder,
    runs: Executions<Mutex<RunState<StageRun>>>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    /// Whether what takes the blocks wants all of them before it gives any.
    feeds_all_to_all: bool,
    limit: Option<QueueLimit>,
}

impl QueueExec {
    /// A queue behind `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = properties(claims::of_rows(input.as_ref()), partitions, EmissionType::Incremental);
        let input_order = InputOrder::of(input.as_ref());
        Self {
            input,
            input_order,
            runs: Executions::default(),
            properties,
            stage: StageMetrics::default(),
            feeds_all_to_all: false,
            limit: None,
        }
    }

    /// The same queue below a limit: its tasks begin as rows lack.
    pub(crate) fn with_limit(&self, limit: QueueLimit) -> Self {
        let queue = Self::new(Arc::clone(&self.input));
        let (input_order, feeds_all_to_all) = (self.input_order.clone(), self.feeds_all_to_all);
        Self { input_order, feeds_all_to_all, limit: Some(limit), ..queue }
    }

    /// What is known of a limit above.
    pub(crate) fn limit(&self) -> Option<QueueLimit> {
        self.limit
    }

    /// The same queue, in front of an operator that wants all blocks before it gives any.
    pub(crate) fn before_all_to_all(mut self) -> Self {
        self.feeds_all_to_all = true;
        self
    }
}

impl Operator for QueueExec {
    fn name(&self) -> &'static str {
        "QueueExec"
    }

    fn describe(&self) -> String {
        match self.limit {
            Some(QueueLimit::Rows(rows)) => format!("limit={rows}"),
            Some(QueueLimit::Unknown) | None => String::new(),
        }
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
        let (input_order, feeds_all_to_all) = (self.input_order.clone(), self.feeds_all_to_all);
        let queue = Self::new(inputs.swap_remove(0));
        Ok(Self { input_order, feeds_all_to_all, limit: self.limit, ..queue }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
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

    fn keeps(&self) -> Retention {
        Retention::Queue
    }
}

impl QueueExec {
    fn run(&self, partition: usize, context: &Arc<TaskContext>, consumer: Option<OpId>) -> Result<TaskStream> {
        let run = self.runs.join(partition, context);
        let start = || {
            let owner = owner_of(self, context);
            let takers = Takers { consumer, feeds_all_to_all: self.feeds_all_to_all, limit: self.limit };
            StageRun::start(&self.input, context, owner, takers).map(Arc::new)
        };
        let started = match run.lock().join("a queue", start)? {
            Joined::Work(work) => work,
            Joined::Nothing(none) => return Ok(none.stream()),
        };
        let tasks = stream::try_unfold((started, run), |(started, run)| async move {
            let mut output = started.balance().output();
            match started.next().await? {
                Some(task) => {
                    run.lock().gives();
                    let batches = output.of(task.batches);
                    Ok(Some((Task { batches, ..task }, (started, run))))
                }
                None => {
                    run.lock().ends();
                    output.end()?;
                    started.balance().all_begun()?;
                    Ok(None)
                }
            }
        });
        Ok(tasks.boxed())
    }
}

impl TaskPlan for QueueExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        self.run(partition, &context, None)
    }

    fn all_tasks(&self, context: Arc<TaskContext>, consumer: Option<OpId>) -> Result<TaskStream> {
        self.run(0, &context, consumer)
    }

    fn stage_name(&self) -> String {
        "Queue".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn is_ordered(&self) -> bool {
        is_ordered(self.input.as_ref())
    }

    // Blocks are cut as memory allows.
    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OfInput { input: &self.input, is_whole: false }
    }

    fn planned_blocks(&self) -> Option<usize> {
        planned_blocks(&self.input)
    }

    fn files(&self) -> Option<ReadFiles> {
        as_task_plan(self.input.as_ref()).and_then(TaskPlan::files)
    }

    fn keeps_row_numbers(&self) -> bool {
        true
    }

    fn works(&self) -> bool {
        false
    }
}
