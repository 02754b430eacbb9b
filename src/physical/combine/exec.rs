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
use futures::{StreamExt, stream};

use super::mix::mixed;
use super::row_reader::RowReader;
use super::zip::zipped;
use crate::block::TaskId;
use crate::physical::StageMetrics;
use crate::physical::gather::gather;
use crate::physical::operator::InputOrder;
use crate::physical::operator::{InputOverlap, Operator, Starts};
use crate::physical::operator::{TaskIdentity, TaskPlan};
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::{Task, TaskStream, execute_tasks, properties, stream_of};

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
}

impl CombineExec {
    /// `schema` is that of the rows that come out.
    pub(crate) fn new(inputs: Vec<Arc<dyn ExecutionPlan>>, how: Combination, schema: SchemaRef) -> Self {
        let properties = properties(EquivalenceProperties::new(schema), 1, EmissionType::Incremental);
        let input_orders = inputs.iter().map(|input| InputOrder::of(input.as_ref())).collect();
        Self { inputs, how, input_orders, properties, stage: StageMetrics::default() }
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
        Ok(Self { input_orders, ..Self::new(inputs, self.how.clone(), self.schema()) }.into_plan())
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
        let reader = |(number, input)| {
            let rows = gather(input, Arc::clone(&context), self.stage.owner())?;
            // All inputs of a mix are counted together.
            Ok(RowReader::new(match balances.get(number).or(balances.first()) {
                Some(balance) => balance.taking(rows),
                None => rows,
            }))
        };
        let inputs = self.inputs.iter().enumerate().map(reader).collect::<Result<Vec<_>>>()?;
        let schema = self.schema();
        let batches = match &self.how {
            Combination::Zip => zipped(inputs, Arc::clone(&schema)),
            Combination::Mix { weights, until_shortest } => {
                mixed(inputs, weights, *until_shortest, Arc::clone(&schema))
            }
        };
        let mut batches = stream_of(schema, batches);
        for balance in &balances {
            batches = balance.giving(batches);
            balance.all_begun()?;
        }
        Ok(stream::iter([Ok(Task::of_plan(TaskId::root(0), batches))]).boxed())
    }

    fn stage_name(&self) -> String {
        self.name().trim_end_matches("Exec").to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn identity(&self) -> TaskIdentity<'_> {
        TaskIdentity::OneTask
    }
}
