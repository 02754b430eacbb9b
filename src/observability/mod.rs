//! Reads what operators count, and says it: the stats report. Nothing here changes what runs.

mod execution;
mod report;
mod tables;

pub(crate) use execution::Execution;
pub(crate) use tables::{SYSTEM_SCHEMA, system_schema};
