//! Several inputs in one stream: row by row beside each other, row by row by turns, or one after the other.

mod exec;
mod mix;
mod row_reader;
mod turns;
mod zip;

pub(crate) use exec::{Combination, CombineExec};
pub(crate) use turns::TurnsExec;

/// Rows of a task, which are cut out of the one stream that comes together: from its start they can come again.
const TASK_ROWS: u64 = 1 << 18;
