//! Rows that a query needs several times and computes once.

mod exec;
mod rows;

pub(crate) use exec::SharedExec;
pub(crate) use rows::SharedRows;
