//! What stands in the way of DataFusion where it looks for sorts that it can take away, move or shorten.
//!
//! These stand in a plan only while sorts and repartitions are added (see `optimizer/physical/keep_orders.rs`), and are
//! never run.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use crate::physical::operator::{InputOrder, IntoPlan, Operator};

/// Keeps the order of its input.
#[derive(Debug)]
pub(crate) struct OrderBarrierExec {
    input: Arc<dyn ExecutionPlan>,
    /// The order that its input was planned with and has to have. Nothing passes that would change it.
    order: InputOrder,
}

impl OrderBarrierExec {
    /// Asks for the order of `input` as it is now.
    pub(crate) fn keeping_order(input: Arc<dyn ExecutionPlan>) -> Self {
        Self { order: InputOrder::of(input.as_ref()), input }
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
        self.input.properties()
    }

    fn input_orders(&self) -> Vec<&InputOrder> {
        vec![&self.order]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        // A sort above what keeps an order must not go below.
        vec![false]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        // What it asks for stays: that is its purpose.
        Ok(Self { input: inputs.swap_remove(0), order: self.order.clone() }.into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
