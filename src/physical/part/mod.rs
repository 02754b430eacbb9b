//! Rows by their numbers: a part of a table.

mod exec;

pub(crate) use exec::PartExec;
