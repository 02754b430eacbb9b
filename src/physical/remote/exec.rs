//! [`RemoteExec`].

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::parts::{num_exchanges, source_of};
use super::stages::{at_once, has_actors, has_own_tasks, is_repeatable};
use super::units::{Grouping, Units};
use super::{StageRunner, Unit};
use crate::physical::operator::{IntoPlan, Operator, PlanExt, Starts, TaskIdentity, TaskPlan, claims};
use crate::physical::queue::QueueExec;
use crate::physical::read::ReadFiles;
use crate::physical::tasks::{
    Executions, Joined, RunState, StageMetrics, TaskStream, as_task_plan, execute_tasks, is_ordered, planned_blocks,
    properties, task_stream,
};
use crate::physical::{WriteTasksExec, Writing, rows_of_input};

/// Where a stage runs.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In this process; why, if that was decided.
    Here(Option<Arc<str>>),
    /// In others.
    There(Arc<dyn StageRunner>),
}

/// The rows of a stage, wherever it runs.
#[derive(Debug)]
pub(crate) struct RemoteExec {
    stage: Arc<dyn ExecutionPlan>,
    place: Place,
    /// Where tasks write files: the same by this process, of rows from where the stage runs.
    written_here: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
    metrics: StageMetrics,
    runs: Executions<Mutex<RunState<Units>>>,
}

impl fmt::Debug for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Units")
    }
}

impl RemoteExec {
    /// The rows of a stage.
    pub(crate) fn new(stage: Arc<dyn ExecutionPlan>) -> Self {
        let partitions = stage.output_partitioning().partition_count();
        let properties = properties(claims::of_rows(stage.as_ref()), partitions, EmissionType::Incremental);
        let (metrics, runs) = (StageMetrics::default(), Executions::default());
        Self { stage, place: Place::Here(None), written_here: None, properties, metrics, runs }
    }

    /// What may run, and behind it the rows of the files, where it writes such.
    pub(super) fn stages(&self) -> impl Iterator<Item = &Arc<dyn ExecutionPlan>> {
        [&self.stage].into_iter().chain(self.written().map(WriteTasksExec::input))
    }

    /// What writes files, if it does.
    fn written(&self) -> Option<&WriteTasksExec> {
        self.stage.operator()
    }

    /// The same rows from another place.
    pub(super) fn at(&self, place: Place) -> Self {
        let written_here = self.written().map(|write| {
            let rows = Self { place: place.clone(), ..Self::new(Arc::clone(write.input())) };
            WriteTasksExec::new(rows.into_plan(), write.files().clone()).into_plan()
        });
        Self { place, written_here, ..Self::new(Arc::clone(&self.stage)) }
    }

    fn stage_name_of_rows(&self) -> String {
        // A queue is called like any other.
        let queued = self.stage.operator::<QueueExec>().and_then(|queue| queue.inputs().into_iter().next());
        let named = queued.unwrap_or(&self.stage);
        match named.operator::<WriteTasksExec>() {
            Some(write) => write.describe_in_tree(),
            None => as_task_plan(named.as_ref()).map_or_else(|| named.name().to_owned(), TaskPlan::stage_name),
        }
    }

    /// How its tasks become units.
    fn grouping(&self) -> Grouping {
        let rows = self.written().map_or(&self.stage, WriteTasksExec::input);
        match has_actors(rows) {
            true => Grouping::WithActors,
            false if !has_own_tasks(rows) => Grouping::Together,
            false if self.written().is_some() => Grouping::Writing,
            false => Grouping::ByTask,
        }
    }

    /// The tasks of the stage as other processes run them.
    fn tasks_there(
        &self,
        runner: &Arc<dyn StageRunner>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<TaskStream> {
        let run = self.runs.join(partition, context);
        let start = || {
            let source = source_of(&self.stage);
            let tasks = source.tasks.clone().unwrap_or_default();
            let is_repeatable = is_repeatable(&self.stage);
            let writing = self.written().and_then(|_| Writing::of(context));
            let unit = Unit { tasks, schema: self.schema(), is_repeatable, writing };
            Ok(Arc::new(Units::new(Arc::clone(runner), unit, source, self.grouping(), self.at_once(runner), context)))
        };
        let units = match run.lock().join("a stage of other processes", start)? {
            Joined::Work(work) => work,
            Joined::Nothing(none) => return Ok(none.stream()),
        };
        let tasks = stream::try_unfold((units, run), |(units, run)| async move {
            let task = units.next().await?;
            match task.is_some() {
                true => run.lock().gives(),
                false => run.lock().ends(),
            }
            Ok(task.map(|task| (task, (units, run))))
        });
        Ok(tasks.boxed())
    }

    /// How many units may run at once.
    fn at_once(&self, runner: &Arc<dyn StageRunner>) -> usize {
        match self.grouping() {
            Grouping::WithActors => runner.processes(),
            Grouping::ByTask | Grouping::Together | Grouping::Writing => at_once(&self.stage),
        }
    }
}

impl Operator for RemoteExec {
    fn name(&self) -> &'static str {
        "RemoteExec"
    }

    fn describe(&self) -> String {
        let place = match &self.place {
            Place::There(runner) => format!(", executors={}", runner.describe()),
            Place::Here(Some(_)) => ", here".to_owned(),
            Place::Here(None) => String::new(),
        };
        let tasks = source_of(&self.stage).tasks.map(|tasks| format!("tasks={}", tasks.len()));
        let exchanges = Some(num_exchanges(&self.stage)).filter(|number| *number > 0);
        let exchanges = exchanges.map(|number| format!("exchanges={number}"));
        let work: Vec<String> = tasks.into_iter().chain(exchanges).collect();
        let work = work.join(", ");
        format!("{}, {work}{place}", self.stage_name_of_rows())
    }

    fn remarks(&self) -> Vec<String> {
        let stage = self.stage_name_of_rows();
        match &self.place {
            Place::Here(Some(why)) => vec![format!("{stage} ran in this process: {why}")],
            Place::Here(None) => Vec::new(),
            Place::There(runner) => runner.remarks(&stage, if self.written().is_some() { "files" } else { "rows" }),
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.stage]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0)).at(self.place.clone()).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        match self.place {
            Place::There(_) => execute_tasks(self, partition, context),
            Place::Here(_) => self.stage.execute(partition, context),
        }
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

    fn inputs_are_elsewhere(&self) -> bool {
        matches!(self.place, Place::There(_))
    }

    fn starts(&self) -> Starts {
        Starts::WhenAsked
    }
}

impl TaskPlan for RemoteExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let Place::There(runner) = &self.place else { return task_stream(&self.stage, partition, context) };
        let there = self.tasks_there(runner, partition, &context)?;
        let (Some(written_here), Some(writing)) = (&self.written_here, Writing::of(&context)) else {
            return Ok(there);
        };
        let (runner, here) = (Arc::clone(runner), task_stream(written_here, partition, context)?);
        let chosen = stream::once(async move {
            let is_elsewhere = match writing.place() {
                Some(place) => writing.elsewhere(runner.sees(&place)).await,
                None => false,
            };
            Ok::<_, DataFusionError>(if is_elsewhere { there } else { here })
        });
        Ok(chosen.try_flatten().boxed())
    }

    fn stage_name(&self) -> String {
        format!("Remote({})", self.stage_name_of_rows())
    }

    fn stage(&self) -> &StageMetrics {
        &self.metrics
    }

    fn is_ordered(&self) -> bool {
        is_ordered(self.stage.as_ref())
    }

    fn identity(&self) -> TaskIdentity<'_> {
        match self.grouping() {
            // Units have the rows of several tasks.
            Grouping::WithActors | Grouping::Together | Grouping::Writing => TaskIdentity::Unsteady,
            Grouping::ByTask => TaskIdentity::OfInput { input: &self.stage, is_whole: true },
        }
    }

    fn planned_blocks(&self) -> Option<usize> {
        planned_blocks(&self.stage).filter(|_| self.grouping() != Grouping::WithActors)
    }

    fn files(&self) -> Option<ReadFiles> {
        as_task_plan(self.stage.as_ref()).and_then(TaskPlan::files)
    }

    fn keeps_row_numbers(&self) -> bool {
        true
    }
}

/// The stages of a plan that may run elsewhere, in its order; behind one that writes files the same without that.
pub(crate) fn remote_stages(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    if let Some(remote) = plan.operator::<RemoteExec>() {
        return remote.stages().map(Arc::clone).collect();
    }
    plan.children().into_iter().flat_map(remote_stages).collect()
}
