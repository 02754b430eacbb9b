//! What stands in the way of DataFusion where it looks for sorts that it can take away, move or shorten.
//!
//! These stand in a plan only while sorts and repartitions are added (see `optimizer/physical/keep_orders.rs`), and are
//! never run.

use crate::physical::operator::IntoPlan;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::physical::operator::InputOrder;
use crate::physical::operator::Operator;

/// Keeps what is known of its input, or hides it.
#[derive(Debug)]
pub(crate) struct OrderBarrierExec {
    input: Arc<dyn ExecutionPlan>,
    /// The order that its input was planned with and has to have. Nothing passes that would change it.
    order: Option<InputOrder>,
    properties: Arc<PlanProperties>,
}

impl OrderBarrierExec {
    /// Asks for the order of `input` as it is now.
    pub(crate) fn keeping_order(input: Arc<dyn ExecutionPlan>) -> Self {
        let (order, properties) = (InputOrder::of(input.as_ref()), Arc::clone(input.properties()));
        Self { input, order: Some(order), properties }
    }

    /// Hides which columns of `input` are constant: they are not where an outer join pads them with nulls.
    pub(crate) fn hiding_constants(input: Arc<dyn ExecutionPlan>) -> Self {
        let known = input.equivalence_properties();
        let orders = known.oeq_class().iter().map(|order| order.iter().cloned().collect::<Vec<_>>());
        let properties = PlanProperties::clone(input.properties())
            .with_eq_properties(EquivalenceProperties::new_with_orderings(input.schema(), orders));
        Self { input, order: None, properties: Arc::new(properties) }
    }

    /// The same above another input.
    fn above(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        match &self.order {
            // What it asks for stays: that is its purpose.
            Some(order) => Self { order: Some(order.clone()), properties: Arc::clone(input.properties()), input },
            None => Self::hiding_constants(input),
        }
    }

    /// What it stands above.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }
}

impl Operator for OrderBarrierExec {
    fn name(&self) -> &'static str {
        "OrderBarrierExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        self.order.iter().collect()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        // A sort above what keeps an order must not go below.
        vec![self.order.is_none()]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.above(inputs.swap_remove(0)).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
