//! [`PipelineExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::TryStreamExt;
use futures::stream::{BoxStream, StreamExt};

use super::history::History;
use super::plans::{Pass, PassEpochs, PassSource, WindowPlans, describe};
use super::queue::{Shared, Window};
use super::run::Runner;
use super::start::Start;
use crate::block::TaskId;
use crate::physical::StageMetrics;
use crate::physical::operator::{
    InputOrder, InputsWork, IntoPlan, Operator, PlanExt, Retention, Starts, TaskIdentity, TaskPlan,
};
use crate::physical::place::{Mark, Place, begun_at};
use crate::physical::tasks::{Task, TaskStream, execute_tasks, owner_of, properties, stream_of, ungathered};
use crate::store::BlockStore;

/// Windows that are made or taken at the same time.
const IN_FLIGHT: usize = 2;

/// Runs a plan for one window of its source after the other.
#[derive(Debug)]
pub(crate) struct PipelineExec {
    /// The plan of a window, as if all rows of the source were one: what it does, and what it needs.
    each_window: Arc<dyn ExecutionPlan>,
    input_order: InputOrder,
    plans: Arc<dyn WindowPlans>,
    first_pass: Arc<dyn Pass>,
    epochs: PassEpochs,
    /// How the windows are said to be.
    about: String,
    in_flight: usize,
    begin: Start,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    history: History,
}

impl PipelineExec {
    /// Runs what `plans` plans, whose first pass has begun. `each_window` is how a plan of theirs looks.
    pub(crate) fn new(
        each_window: Arc<dyn ExecutionPlan>,
        plans: Arc<dyn WindowPlans>,
        first_pass: Arc<dyn Pass>,
        epochs: PassEpochs,
        about: String,
    ) -> Self {
        let known = EquivalenceProperties::new(each_window.schema());
        let input_order = InputOrder::of(each_window.as_ref());
        Self {
            each_window,
            input_order,
            plans,
            first_pass,
            epochs,
            about,
            in_flight: IN_FLIGHT,
            begin: Start::default(),
            properties: properties(known, 1, EmissionType::Incremental),
            stage: StageMetrics::default(),
            history: History::default(),
        }
    }

    fn anew(&self) -> Self {
        let (each_window, plans) = (Arc::clone(&self.each_window), Arc::clone(&self.plans));
        let anew = Self::new(each_window, plans, Arc::clone(&self.first_pass), self.epochs, self.about.clone());
        Self { input_order: self.input_order.clone(), in_flight: self.in_flight, begin: self.begin.clone(), ..anew }
    }

    /// The same with so many windows in flight.
    pub(crate) fn with_in_flight(&self, windows: usize) -> Self {
        Self { in_flight: windows, ..self.anew() }
    }

    /// Windows that are in flight at once, at most.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The windows, each when it has begun.
    fn windows(&self, context: &Arc<TaskContext>) -> Result<BoxStream<'static, Result<Window>>> {
        let shared = Shared {
            store: BlockStore::of_task(context)?,
            owner: owner_of(self, context),
            context: Arc::clone(context),
            history: self.history.clone(),
            rows: Arc::default(),
        };
        let runner = Runner {
            plans: Arc::clone(&self.plans),
            first_pass: Arc::clone(&self.first_pass),
            epochs: self.epochs,
            begin: self.begin.clone(),
            in_flight: self.in_flight,
            windows_of,
            shared,
        };
        Ok(runner.windows())
    }
}

/// The windows of a plan that is a pipeline, from a place on.
fn windows_of(
    plan: &Arc<dyn ExecutionPlan>,
    place: &Place,
    context: &Arc<TaskContext>,
) -> Result<Option<BoxStream<'static, Result<Window>>>> {
    let plan = ungathered(plan);
    if !plan.is_operator::<PipelineExec>() {
        return Ok(None);
    }
    let begun = begun_at(plan, place)?;
    begun.operator::<PipelineExec>().map(|pipeline| pipeline.windows(context)).transpose()
}

impl Operator for PipelineExec {
    fn name(&self) -> &'static str {
        "PipelineExec"
    }

    fn describe(&self) -> String {
        let flight = if self.in_flight < IN_FLIGHT { ", one window at a time" } else { "" };
        format!("{}{flight}", self.about)
    }

    fn describe_in_tree(&self) -> String {
        self.describe().replace(", ", "\n")
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.each_window]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self { each_window: inputs.swap_remove(0), ..self.anew() }.into_plan())
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

    fn plans_that_ran(&self) -> Option<Vec<(String, Arc<dyn ExecutionPlan>)>> {
        Some(self.history.told())
    }

    fn warnings(&self, limit: usize, threads: usize) -> Vec<String> {
        match self.first_pass.source() {
            PassSource::Tasks(windows) => describe(windows, limit, threads),
            PassSource::Inputs(1) => vec!["One window of all rows in each pass".to_owned()],
            PassSource::Inputs(inputs) => vec![format!("{inputs} windows in each pass, of an input each")],
            PassSource::Rows { size, .. } => vec![format!("Windows by {size}, cut while the rows come")],
        }
    }

    fn remarks(&self) -> Vec<String> {
        self.history.remarks()
    }

    fn inputs_work(&self) -> InputsWork {
        InputsWork::SeveralOfIt(self.in_flight)
    }

    fn starts(&self) -> Starts {
        Starts::WhenExecuted
    }

    fn keeps(&self) -> Retention {
        Retention::Queue
    }
}

impl TaskPlan for PipelineExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let tasks = self.windows(&context)?.map_ok(|window| {
            let (epoch, number) = window.start.label;
            let schema = Arc::clone(&window.schema);
            let batches = window.pieces().map_ok(|piece| piece.marked.batch);
            Task::of_plan(TaskId::from(vec![epoch, number]), stream_of(schema, batches.boxed()))
        });
        Ok(tasks.boxed())
    }

    fn stage_name(&self) -> String {
        "Pipeline".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::Windows
    }

    fn begins_anywhere(&self) -> bool {
        true
    }

    fn begins_with_inputs(&self) -> bool {
        false
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let (epoch, rest) = mark.id.out_of()?;
        let label = (epoch, rest.task_of_source() as u32);
        let (start, inside) = self.history.find(label, mark.row)?;
        let inside = inside.unwrap_or_else(|| Place::replayed(mark.row));
        let mut numbers = vec![start.pass, start.number, u64::from(label.0), u64::from(label.1)];
        let mut inputs = vec![inside];
        if let Some(source) = start.source {
            numbers.push(1);
            inputs.push(source);
        }
        Some(Place { numbers, inputs, first_row: mark.row, skip: 0 })
    }

    fn task_of(&self, place: &Place) -> Option<TaskId> {
        match place.numbers.as_slice() {
            &[_, _, epoch, window, ..] => Some(TaskId::from(vec![epoch as u32, window as u32])),
            _ => None,
        }
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let begin = match (place.numbers.as_slice(), place.inputs.as_slice()) {
            (&[pass, number, epoch, window, ..], [inside, source @ ..]) => {
                let (label, row, inside) = ((epoch as u32, window as u32), place.first_row, inside.clone());
                Start { pass, number, label, source: source.first().cloned(), inside, row, is_first: true }
            }
            _ => Start::default(),
        };
        Ok(Self { begin, history: self.history.clone(), ..self.anew() }.into_plan())
    }
}
