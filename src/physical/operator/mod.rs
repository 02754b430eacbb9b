//! What our operators are to DataFusion, once: a trait that each of them implements, and the one `ExecutionPlan`.
//!
//! ```text
//! DataFusion ──> OperatorExec ──> dyn Operator     MapExec, ReadExec, ExchangeExec, ..
//!                                    │ as_task_plan
//!                                    └──> dyn TaskPlan, where it gives tasks and blocks to others of ours
//! ```
//!
//! Whoever asks something of a plan (its memory, its progress, where its time went) asks the operator, and need not
//! know which ones there are. Only rules look for operators of a type, with [`PlanExt::operator`].

pub(crate) mod claims;
mod contract;
mod exec;
mod input_order;

pub(crate) use contract::{
    InputOverlap, InputsWork, MapSide, Operator, Preparation, Retention, Starts, TaskIdentity, TaskPlan,
};
pub(crate) use exec::{IntoPlan, PlanExt, ran_below, stages_below};
pub(crate) use input_order::InputOrder;
