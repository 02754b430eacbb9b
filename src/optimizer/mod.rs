//! Rewrites of plans, and the registry that says where each stands among DataFusion's own.

mod logical;
mod physical;
mod registry;
mod rules;

pub(crate) use physical::{expected_rows, in_least_memory};
pub use registry::{Anchor, RuleRegistry};
