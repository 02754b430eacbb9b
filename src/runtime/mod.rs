//! The only place that starts work. Everything it starts is owned by what it returns: dropping that cancels the work.

mod activity;
mod actors;
mod background;
mod backoff;
mod drivers;
mod io;
mod out_queue;
mod scheduler;
mod stack;

pub(crate) use activity::{Stillness, UnderWay};
pub(crate) use actors::{ActorLife, Actors};
pub(crate) use background::in_background;
pub(crate) use backoff::backoff;
pub(crate) use drivers::Drivers;
#[cfg(feature = "cli")]
pub(crate) use io::await_begun;
#[cfg(feature = "cloud")]
pub(crate) use io::{OnHandle, requests_runtime};
pub(crate) use io::{
    begun_on_io_thread, block_on_io, holding_up, in_thread, on_io_thread, on_own_thread, talking_runtime, to_its_end,
};
pub(crate) use out_queue::OutQueue;
pub use scheduler::{BackpressurePolicy, ConcurrencyCap, DownstreamCapacity, OpId, OpView, ResourceBudget, Resources};
pub(crate) use scheduler::{OpHandle, OpSpec, OpStatus, Permit, PoolSpec, PoolState, Quiet, Scheduler, Wait};
pub(crate) use stack::{DeepStack, on_deep_stack};
