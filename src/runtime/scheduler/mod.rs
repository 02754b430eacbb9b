//! Decides which operator may start work.
//!
//! ```text
//!  worker ── asks to start ──>  core: resources, policies, rank  ── grants ──> worker runs a task
//!  worker ── gives a block ──>  or parks until the block is wanted
//! ```

mod allocator;
mod core;
mod handle;
mod op;
mod policies;
mod pool;
mod resources;
#[cfg(test)]
mod simulation;
mod solver;

pub(crate) use self::core::OpStatus;
pub(crate) use handle::{OpHandle, Permit, Quiet, Scheduler};
pub use op::{OpId, OpView};
pub(crate) use op::{OpSpec, Wait};
pub use policies::{BackpressurePolicy, ConcurrencyCap, DownstreamCapacity, ResourceBudget};
pub(crate) use pool::{PoolSpec, PoolState};
pub use resources::Resources;
