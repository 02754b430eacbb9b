//! Rows that a query needs several times and computes once.

mod exec;
mod link;
mod rows;

pub(crate) use exec::SharedExec;
pub(crate) use link::linked;
pub(crate) use rows::SharedRows;
