//! Windows whose frames begin with the partition and end with the row, with its peers, or with the partition: running
//! sums, ranks, shares of a whole.
//!
//! DataFusion's operators ask an accumulator for the value of each row. Here a window goes over the rows of a batch in
//! one loop, and keeps what it has come to for the next. Rows are given as soon as no later one can change what is said
//! of them:
//!
//! ```text
//! ORDER BY k                 1 1 2 2 2 3 │ 3 3 4 ...
//! until the row              1 1 2 2 2 3 │ 3 3 4
//! until the peers of the row 1 1 2 2 2   │ 3 3 3    the last peers may not be complete
//! ```
//!
//! Those that wait go to the store when there are many.

mod accumulated;
mod counted;
mod exec;
mod folded;
mod ranked;
mod rows;
mod walk;
mod window;

pub(crate) use exec::CumulativeWindowsExec;
pub(crate) use ranked::{Ranking, ranking_of};
pub(crate) use window::{are_cumulative, has_filter};

use datafusion::arrow::array::ArrayRef;
use datafusion::common::Result;

use rows::Rows;

/// A window, as it goes from batch to batch.
trait CumulativeWindow: Send {
    /// What it says of the next rows. Of those whose frame ends with the last rows of the batch, it says what would be
    /// true if no more came.
    fn next(&mut self, rows: &Rows<'_>) -> Result<ArrayRef>;

    /// Bytes that it keeps.
    fn bytes(&self) -> usize {
        0
    }
}
