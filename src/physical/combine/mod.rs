//! Several inputs in one stream, row by row: beside each other, or by turns.

mod exec;
mod mix;
mod row_reader;
mod zip;

pub(crate) use exec::{Combination, CombineExec};
