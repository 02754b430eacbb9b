//! Keeps an order where DataFusion looks for sorts that it can take away or move.
//!
//! It stands in a plan only while sorts and repartitions are added (see `optimizer/physical/keep_orders.rs`), and is never
//! run.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties, ReplaceChildrenOptions,
};

use super::input_order::InputOrder;

/// Asks for the order that its input was planned with, and lets nothing through that would change it.
#[derive(Debug)]
pub(crate) struct OrderBarrierExec {
    input: Arc<dyn ExecutionPlan>,
    order: InputOrder,
}

impl OrderBarrierExec {
    /// A barrier above `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let order = InputOrder::of(input.as_ref());
        Self { input, order }
    }

    /// What it stands above.
    pub(crate) fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }
}

impl DisplayAs for OrderBarrierExec {
    fn fmt_as(&self, _t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderBarrierExec")
    }
}

impl ExecutionPlan for OrderBarrierExec {
    fn name(&self) -> &str {
        "OrderBarrierExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.order.ordering()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.order.distribution()
    }

    /// A sort above must not go below.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
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
        // What it asks for stays: that is its purpose.
        Ok(Arc::new(Self { input: children.swap_remove(0), order: self.order.clone() }))
    }

    without_expressions!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
