//! Hides from DataFusion what does not hold of rows as it takes them.

use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::physical::operator::{IntoPlan, Operator};

/// Rows as they are, of which less is known.
#[derive(Debug)]
pub(crate) struct HideClaimsExec {
    input: Arc<dyn ExecutionPlan>,
    hidden: Claims,
    properties: Arc<PlanProperties>,
}

/// What is not to be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claims {
    /// That a column is constant, or equal to another: it is not where an outer join pads it with nulls.
    Constants,
    /// That, and orders: a grouping set has null in place of a column.
    All,
}

impl HideClaimsExec {
    /// Above `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, hidden: Claims) -> Self {
        let mut known = EquivalenceProperties::new(input.schema());
        if hidden == Claims::Constants {
            let orders = input.equivalence_properties().oeq_class().iter();
            known.add_orderings(orders.map(|order| order.iter().cloned().collect::<Vec<_>>()));
        }
        let properties = Arc::new(PlanProperties::clone(input.properties()).with_eq_properties(known));
        Self { input, hidden, properties }
    }

    /// Whether anything of `input` would be hidden.
    pub(crate) fn hides(input: &dyn ExecutionPlan, hidden: Claims) -> bool {
        let known = input.equivalence_properties();
        let has_classes = known.eq_group().iter().next().is_some();
        has_classes || hidden == Claims::All && !known.oeq_class().is_empty()
    }

    /// What it stands above.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }
}

impl Operator for HideClaimsExec {
    fn name(&self) -> &'static str {
        "HideClaimsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![self.hidden == Claims::Constants]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.hidden).into_plan())
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
