//! Reads what operators count, and says it: the stats report. Nothing here changes what runs.

mod bottleneck;
mod callback;
mod diagnose;
mod execution;
mod iterators;
mod progress;
mod report;
mod tables;
mod watch;

pub use callback::{
    ConsumerWaits, ExecutionCallback, ExecutionFailed, ExecutionProgress, ExecutionStarted, ExecutionSucceeded,
};
pub(crate) use diagnose::DiagnoseExec;
pub(crate) use execution::{Execution, Observers};
pub(crate) use iterators::{IteratorStatus, ObservedIterator};
pub(crate) use tables::{SYSTEM_SCHEMA, system_schema};
pub use tables::{SystemColumn, SystemTable, system_tables};
pub(crate) use watch::Watch;
