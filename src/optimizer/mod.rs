//! Rewrites of plans, and the registry that says where each stands among DataFusion's own.

mod logical;
mod physical;
mod registry;

pub use registry::{Anchor, RuleRegistry};
