//! [`GatherExec`].

use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::{StreamExt, stream};

use super::in_order::{gather, gather_in_order};
use crate::block::TaskId;
use crate::physical::map::limited;
use crate::physical::operator::{IntoPlan, Operator, Starts, TaskIdentity, TaskPlan, claims};
use crate::physical::place::{Mark, MarkLog, Place, marked_rows, rows_of_marked};
use crate::physical::tasks::{Task, TaskStream, execute_tasks, is_ordered, owner_of, planned_blocks, properties};
use crate::physical::{StageMetrics, rows_of_input};
use crate::store::Owner;

/// One partition out of many, in order, with at most `fetch` rows.
#[derive(Debug)]
pub(crate) struct GatherExec {
    input: Arc<dyn ExecutionPlan>,
    fetch: Option<usize>,
    /// What is known of all rows together, if they were sorted.
    sorted: Option<EquivalenceProperties>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    /// Where its input begins, and how many of its rows were given before, below a limit.
    begin: Place,
    given: u64,
    /// Where the rows of the input came from, below a limit.
    log: MarkLog,
}

impl GatherExec {
    /// Gathers `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Self {
        let properties = properties(claims::of_gathered(&input), 1, EmissionType::Incremental);
        let (begin, log) = (Place::default(), MarkLog::default());
        Self { input, fetch, sorted: None, properties, stage: StageMetrics::default(), begin, given: 0, log }
    }

    /// Gathers `input`, whose tasks one after the other have the order and whatever else is `known`.
    pub(crate) fn sorted(input: Arc<dyn ExecutionPlan>, known: EquivalenceProperties) -> Self {
        let gather = Self::new(input, None);
        let properties = gather.properties.as_ref().clone().with_eq_properties(known.clone());
        Self { sorted: Some(known), properties: Arc::new(properties), ..gather }
    }
}

impl GatherExec {
    /// The rows up to the limit, from the place on at which it begins.
    fn first_rows(
        &self,
        context: &Arc<TaskContext>,
        owner: &Arc<Owner>,
        fetch: usize,
    ) -> Result<SendableRecordBatchStream> {
        let left = fetch.saturating_sub(self.given as usize);
        let rows = marked_rows(&self.input, context, owner, &self.begin, Some(left))?;
        Ok(rows_of_marked(self.schema(), self.log.noting(self.given, &self.begin, rows)))
    }

    fn over(&self, input: Arc<dyn ExecutionPlan>, fetch: Option<usize>) -> Self {
        match &self.sorted {
            Some(known) => Self { fetch, ..Self::sorted(input, known.clone()) },
            None => Self { begin: self.begin.clone(), given: self.given, ..Self::new(input, fetch) },
        }
    }
}

impl Operator for GatherExec {
    fn name(&self) -> &'static str {
        "GatherExec"
    }

    fn describe(&self) -> String {
        let order = self.properties.output_ordering().map(|order| format!("order=[{order}]"));
        let parts: Vec<_> = order.into_iter().chain(self.fetch.map(|n| format!("fetch={n}"))).collect();
        parts.join(", ")
    }

    fn describe_in_tree(&self) -> String {
        self.fetch.map_or_else(String::new, |n| format!("limit={n}"))
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.over(inputs.swap_remove(0), self.fetch).into_plan())
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
        // Fewer rows come out than go in when it ends early.
        let rows = rows_of_input(inputs, args, &self.schema());
        Ok(if self.fetch.is_some() { Arc::new(Statistics::new_unknown(&self.schema())) } else { rows })
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(self.over(Arc::clone(&self.input), fetch).into_plan())
    }

    fn starts(&self) -> Starts {
        Starts::WhenExecuted
    }
}

impl TaskPlan for GatherExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let owner = owner_of(self, &context);
        let batches = match (&self.sorted, self.fetch) {
            // Whether or not anybody asked for the order of the dataset.
            (Some(_), fetch) => gather_in_order(&self.input, context, &owner, fetch)?,
            (None, Some(fetch)) => self.first_rows(&context, &owner, fetch)?,
            (None, None) => gather(&self.input, context, &owner)?,
        };
        let batches = match self.fetch {
            Some(fetch) => limited(batches, fetch.saturating_sub(self.given as usize)),
            None => batches,
        };
        Ok(stream::iter([Ok(Task::of_plan(TaskId::root(0), batches))]).boxed())
    }

    fn stage_name(&self) -> String {
        "Gather".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OneTask
    }

    fn gathers(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        Some(&self.input).filter(|input| self.fetch.is_none() && is_ordered(input.as_ref()))
    }

    fn begins_anywhere(&self) -> bool {
        self.fetch.is_some() && self.sorted.is_none()
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let input = self.log.place_of(&self.input, mark.row).filter(|_| self.begins_anywhere())?;
        Some(Place { numbers: vec![mark.row], inputs: vec![input], first_row: mark.row, skip: 0 })
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let begin = place.inputs.first().cloned().unwrap_or_default();
        let anew = self.over(Arc::clone(&self.input), self.fetch);
        Ok(Self { begin, given: place.first_row, log: self.log.clone(), ..anew }.into_plan())
    }

    fn planned_blocks(&self) -> Option<usize> {
        planned_blocks(&self.input)
    }
}
