//! The end of a stage: its tasks are started as the scheduler says, and their blocks wait until they are pulled.

mod dispatch;
mod exec;
mod run;
mod spec;
mod stage;

pub(crate) use exec::QueueExec;
pub(crate) use stage::QueueLimit;
