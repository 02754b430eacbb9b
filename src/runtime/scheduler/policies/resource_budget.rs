//! Operators keep to the budgets of the reservation allocator.

use super::super::op::OpView;
use super::BackpressurePolicy;

/// Ray's `ResourceBudgetBackpressurePolicy`.
#[derive(Debug)]
pub struct ResourceBudget;

impl BackpressurePolicy for ResourceBudget {
    fn name(&self) -> &'static str {
        "ResourceBudget"
    }

    fn can_start(&self, op: OpView<'_>) -> bool {
        // Under pressure an idle operator may work on what waits for it: that is how memory gets free.
        if op.open_tasks() == 0 {
            return true;
        }
        // Before the first block it is not known what a task gives, and not guessed.
        op.task_is_within_budget()
    }

    fn output_bytes(&self, op: OpView<'_>) -> Option<u64> {
        Some(op.output_budget())
    }
}
