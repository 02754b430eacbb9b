//! What holds operators back: one policy per file. A policy is asked before a task starts and before a task gives a
//! block; the strictest counts. That nothing ever stalls does not depend on policies: see the core.

mod concurrency_cap;
mod downstream_capacity;
mod resource_budget;

use std::fmt::Debug;
use std::sync::Arc;

pub use concurrency_cap::ConcurrencyCap;
use datafusion::common::Result;
pub use downstream_capacity::DownstreamCapacity;
pub use resource_budget::ResourceBudget;

use super::op::OpView;

/// Decides when operators are held back. Called often, from whatever thread ends a task: must be quick, and must not
/// wait.
pub trait BackpressurePolicy: Debug + Send + Sync {
    /// What stats and messages call it.
    fn name(&self) -> &'static str;

    /// Whether the operator may start one more task.
    fn can_start(&self, op: OpView<'_>) -> bool {
        let _any = op;
        true
    }

    /// Bytes that running tasks of the operator may give now; `None` for any number. A block is given whole, so that it
    /// may be more by one block.
    fn output_bytes(&self, op: OpView<'_>) -> Option<u64> {
        let _any = op;
        None
    }
}

/// Policies by their names, separated by commas: `concurrency_cap`, `adaptive_concurrency_cap`, `resource_budget`,
/// `downstream_capacity`.
pub(crate) fn policies_by_name(names: &str) -> Result<Vec<Arc<dyn BackpressurePolicy>>> {
    const NAMES: [&str; 4] = ["concurrency_cap", "adaptive_concurrency_cap", "resource_budget", "downstream_capacity"];
    let policy = |name: &str| -> Result<Arc<dyn BackpressurePolicy>> {
        Ok(match name {
            "concurrency_cap" => Arc::new(ConcurrencyCap::default()),
            "adaptive_concurrency_cap" => Arc::new(ConcurrencyCap::adaptive()),
            "resource_budget" => Arc::new(ResourceBudget),
            "downstream_capacity" => Arc::new(DownstreamCapacity::default()),
            _ => return Err(crate::error::unknown_name("backpressure policy", name, "", &NAMES)),
        })
    };
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(policy).collect()
}
