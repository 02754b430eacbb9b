//! Numbers by which plans and files are told to be still the same.

use datafusion::logical_expr::LogicalPlan;

use crate::block::TaskId;

/// A number that depends on nothing but a text.
pub(crate) fn text_fingerprint(text: &str) -> u64 {
    TaskId::from(text.bytes().map(u32::from).collect::<Vec<_>>()).hash()
}

/// Of all that a plan says of itself, its columns and seeds included.
pub(crate) fn plan_fingerprint(plan: &LogicalPlan) -> u64 {
    text_fingerprint(&plan.display_indent_schema().to_string())
}
