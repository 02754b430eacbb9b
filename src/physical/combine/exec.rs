//! [`CombineExec`].

use crate::physical::operator::IntoPlan;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use super::TASK_ROWS;
use super::mix::{Taken, TurnLog, mixed};
use super::row_reader::RowReader;
use super::zip::zipped;
use crate::physical::StageMetrics;
use crate::physical::operator::InputOrder;
use crate::physical::operator::{InputOverlap, Operator, Starts};
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::place::{Mark, MarkLog, Place, marked_rows, rows_of_marked, tasks_of_rows};
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::{TaskStream, execute_tasks, properties, stream_of};

/// How rows of several inputs come together.
#[derive(Debug, Clone)]
pub(crate) enum Combination {
    /// Beside each other.
    Zip,
    /// By turns.
    Mix {
        /// What the numbers of rows are proportional to.
        weights: Vec<f64>,
        /// Whether it ends with the first input that has no more rows, and not with the last.
        until_shortest: bool,
    },
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zip => Ok(()),
            Self::Mix { weights, until_shortest } => {
                let weights: Vec<_> = weights.iter().map(ToString::to_string).collect();
                let condition = if *until_shortest { "shortest" } else { "longest" };
                write!(f, "weights=[{}], stopping_condition={condition}", weights.join(", "))
            }
        }
    }
}

/// Streams several inputs as one partition.
#[derive(Debug)]
pub(crate) struct CombineExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    how: Combination,
    input_orders: Vec<InputOrder>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
    begin: Begin,
    /// Where the rows of each input came from.
    logs: Vec<MarkLog>,
    /// Whose turn it was, in a mix.
    turns: TurnLog,
}

/// Where it begins.
#[derive(Debug, Clone, Default)]
struct Begin {
    /// Rows that were given before.
    row: u64,
    /// Where the inputs begin, and what was taken of them before; nothing at the first row.
    inputs: Vec<Place>,
    taken: Option<Taken>,
}

impl CombineExec {
    /// `schema` is that of the rows that come out.
    pub(crate) fn new(inputs: Vec<Arc<dyn ExecutionPlan>>, how: Combination, schema: SchemaRef) -> Self {
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Incremental);
        let input_orders = inputs.iter().map(|input| InputOrder::of(input.as_ref())).collect();
        let logs = inputs.iter().map(|_| MarkLog::default()).collect();
        let (begin, turns) = (Begin::default(), TurnLog::default());
        Self { inputs, how, input_orders, properties, stage: StageMetrics::default(), begin, logs, turns }
    }

    /// What must be equal: each input of a zip with its output, or all inputs of a mix with it, unless it ends with one
    /// of them.
    fn balances(&self, context: &TaskContext) -> Vec<Arc<RowBalance>> {
        let new = |what: String| RowBalance::new(what, context);
        match self.how {
            Combination::Zip => {
                (0..self.inputs.len()).map(|number| new(format!("input {number} of ZipExec"))).collect()
            }
            Combination::Mix { until_shortest: false, .. } => vec![new("MixExec".to_owned())],
            Combination::Mix { until_shortest: true, .. } => Vec::new(),
        }
    }

    /// Whether a row has the columns of all inputs.
    pub(crate) fn is_zip(&self) -> bool {
        matches!(self.how, Combination::Zip)
    }
}

impl Operator for CombineExec {
    fn name(&self) -> &'static str {
        if self.is_zip() { "ZipExec" } else { "MixExec" }
    }

    fn describe(&self) -> String {
        match &self.how {
            Combination::Zip => String::new(),
            mix => mix.to_string(),
        }
    }

    fn describe_in_tree(&self) -> String {
        self.describe()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        self.input_orders.iter().collect()
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input_orders = self.input_orders.clone();
        let begin = self.begin.clone();
        Ok(Self { input_orders, begin, ..Self::new(inputs, self.how.clone(), self.schema()) }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn as_task_plan(&self) -> Option<&dyn TaskPlan> {
        Some(self)
    }

    fn starts(&self) -> Starts {
        Starts::WhenExecuted
    }

    fn brings_together(&self) -> InputOverlap {
        if self.is_zip() { InputOverlap::SideBySide } else { InputOverlap::AsTheyAre }
    }
}

impl TaskPlan for CombineExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let balances = self.balances(&context);
        let reader = |(number, input): (usize, &Arc<dyn ExecutionPlan>)| {
            let begin = self.begin.inputs.get(number).cloned().unwrap_or_default();
            let taken = self.begin.taken.as_ref().map_or(self.begin.row, |taken| taken.rows[number]);
            let rows = marked_rows(input, &context, self.stage.owner(), &begin, None)?;
            let rows = rows_of_marked(input.schema(), self.logs[number].noting(taken, &begin, rows));
            // All inputs of a mix are counted together.
            let rows = match balances.get(number).or(balances.first()) {
                Some(balance) => balance.taking(rows),
                None => rows,
            };
            Ok(RowReader::new(rows, taken as usize))
        };
        let inputs = self.inputs.iter().enumerate().map(reader).collect::<Result<Vec<_>>>()?;
        let schema = self.schema();
        let batches = match &self.how {
            Combination::Zip => zipped(inputs, Arc::clone(&schema)),
            Combination::Mix { weights, until_shortest } => {
                let turn = self.begin.taken.as_ref().map(|taken| (taken.turn.0 as usize, taken.turn.1 as usize));
                mixed(inputs, weights, *until_shortest, Arc::clone(&schema), turn, self.turns.clone())
            }
        };
        let mut batches = stream_of(schema, batches);
        for balance in &balances {
            batches = balance.giving(batches);
            balance.all_begun()?;
        }
        Ok(tasks_of_rows(batches, TASK_ROWS, self.begin.row))
    }

    fn begins_anywhere(&self) -> bool {
        true
    }

    fn place_of(&self, mark: &Mark) -> Option<Place> {
        let task = mark.id.task_of_source() as u64 * TASK_ROWS;
        let input_at = |number: usize, row: u64| self.logs[number].place_of(&self.inputs[number], row);
        if self.is_zip() {
            let row = task + mark.row;
            let inputs = (0..self.inputs.len()).map(|number| input_at(number, row)).collect::<Option<_>>()?;
            // Behind the last row of a task is the first one of the next.
            return Some(Place { numbers: vec![row], inputs, first_row: row % TASK_ROWS, skip: 0 });
        }
        let taken = self.turns.at(task)?;
        let inputs = taken.rows.iter().enumerate().map(|(number, row)| input_at(number, *row));
        let inputs = inputs.collect::<Option<_>>()?;
        let numbers = [vec![task, taken.turn.0, taken.turn.1], taken.rows].concat();
        Some(Place { numbers, inputs, first_row: 0, skip: mark.row })
    }

    fn begun_at(&self, place: &Place) -> Result<Arc<dyn ExecutionPlan>> {
        let taken = match place.numbers.as_slice() {
            [_, input, left, rows @ ..] if rows.len() == self.inputs.len() => {
                Some(Taken { rows: rows.to_vec(), turn: (*input, *left) })
            }
            _ => None,
        };
        let row = place.numbers.first().copied().unwrap_or(0);
        let begin = Begin { row, inputs: place.inputs.clone(), taken };
        let anew = Self::new(self.inputs.clone(), self.how.clone(), self.schema());
        let (logs, turns) = (self.logs.clone(), self.turns.clone());
        Ok(Self { begin, logs, turns, input_orders: self.input_orders.clone(), ..anew }.into_plan())
    }

    fn stage_name(&self) -> String {
        self.name().trim_end_matches("Exec").to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::Own { is_whole: true }
    }
}
