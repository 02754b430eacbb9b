//! Reads what operators count, and says it: the stats report. Nothing here changes what runs.

mod execution;
mod report;

pub(crate) use execution::Execution;
