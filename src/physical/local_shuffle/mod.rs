//! A shuffle of neighbours: rows leave some places later than they come.

mod exec;
mod held_rows;

pub(crate) use exec::LocalShuffleExec;
