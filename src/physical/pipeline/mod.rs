//! Pipelines: a plan that runs for one window of its source after the other.
//!
//! ```text
//! source:  tasks 0 1 2 | 3 4 5 | 6 7      windows are tasks of a read, or are cut out of the rows of a plan
//!              │           │
//!          plan of w0  plan of w1         each is planned anew, with seeds of its own; two are in flight at once
//!              │           │
//!           queue ──>   queue ──>  ...    one is taken, while the next one is made
//! ```
//!
//! A window is in flight from when it is planned until its last row is taken, so a permit for each of two is what keeps
//! the third from being read. What a window has made and nobody has taken waits in the store, up to a part of the
//! memory; then its plan waits.

mod cut;
mod exec;
mod history;
mod plans;
mod queue;
mod run;
mod start;
mod units;

pub(crate) use exec::PipelineExec;
pub(crate) use plans::{Pass, PassEpochs, PassSource, WindowInput, WindowPlans, WindowTasks};
