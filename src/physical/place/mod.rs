//! Places in the rows of a plan, from which it can begin: what a consumer needs to go on where another one has ended.
//!
//! ```text
//! MapExec: ReadParquet->Filter      rows:   task 0 ────── task 1 ────── task 2 ──────
//!   ReadExec: ReadParquet                                      ^ row 7 of task 1
//!                                   place:  the read begins at task 1, and 7 rows are passed over
//! ```
//!
//! What says where a row stands follows from data alone, as ids of tasks do (`tasks/steady.rs`): so a place that was
//! found with one number of threads, or one memory limit, holds with any other. Operators that cut tasks of their own
//! out of the rows of their inputs note in a [`MarkLog`] where these came from.

mod log;
mod marked;
mod origin;
mod repeats;
mod resumes;
mod seek;
mod value;

pub(crate) use log::MarkLog;
pub(crate) use marked::{Marked, MarkedStream, begun_rows, marked_rows, rows_of_marked, tasks_of_rows};
pub(crate) use origin::Inputs;
pub use resumes::Resumes;
pub(crate) use seek::{begun_at, place_of, seeks};
pub(crate) use value::Mark;

pub(crate) use crate::token::Place;
