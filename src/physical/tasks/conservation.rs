//! Rows are conserved, and that is checked while running.
//!
//! An operator that moves rows counts those that it takes and those that it gives, a batch at a time. When all of its
//! output has been taken to the end, both numbers must be the same. Otherwise rows were lost or doubled: the query ends
//! with an internal error that names the operator and both numbers, and what it would have written is not committed.
//!
//! ```text
//! input ── take ──> operator ── give ──> output 0 ──┐
//!                                 └────> output 1 ──┴─ the last one to end compares
//! ```
//!
//! Output that nobody takes to its end is not compared: below a limit, below a join whose other side has no rows, and
//! when a query is cancelled.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use futures::{Stream, ready};

/// The rows that one execution of an operator has taken and given.
#[derive(Debug)]
pub(crate) struct RowBalance {
    operator: String,
    taken: AtomicUsize,
    given: AtomicUsize,
    /// Outputs that have not ended, and one for those that are still to come.
    open: AtomicUsize,
    /// Whether no output is still to come.
    all_begun: AtomicBool,
    /// Whether somebody did not take all of an output.
    left_early: AtomicBool,
    #[cfg(test)]
    fault: Option<faults::Fault>,
}

impl RowBalance {
    /// A new balance of `operator`, as errors shall name it.
    pub(crate) fn new(operator: impl Into<String>, context: &TaskContext) -> Arc<Self> {
        let operator = operator.into();
        #[cfg(test)]
        let fault = faults::of_operator(&operator, context);
        #[cfg(not(test))]
        let _context = context;
        Arc::new(Self {
            operator,
            taken: AtomicUsize::new(0),
            given: AtomicUsize::new(0),
            open: AtomicUsize::new(1),
            all_begun: AtomicBool::new(false),
            left_early: AtomicBool::new(false),
            #[cfg(test)]
            fault,
        })
    }

    /// Counts rows that the operator has taken.
    pub(crate) fn take(&self, rows: usize) {
        self.taken.fetch_add(rows, Relaxed);
    }

    /// Counts rows that the operator has given.
    pub(crate) fn give(&self, rows: usize) {
        self.given.fetch_add(rows, Relaxed);
    }

    /// The same rows, which are counted as taken when they come.
    pub(crate) fn taking(self: &Arc<Self>, batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let taken = Box::pin(Taken { batches, balance: Arc::clone(self) });
        #[cfg(test)]
        let taken = faults::tampered(self.fault, taken);
        taken
    }

    /// An output that will be given. Where several streams take their work from one place, each opens an output before
    /// it looks, and ends it when there is nothing: else the last work might be compared before it is begun.
    pub(crate) fn output(self: &Arc<Self>) -> Output {
        self.open.fetch_add(1, AcqRel);
        Output { balance: Arc::clone(self), is_open: true }
    }

    /// The rows of one output, which are counted when they go.
    pub(crate) fn giving(self: &Arc<Self>, batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
        self.output().of(batches)
    }

    /// Says that no output is still to come. Compares, if all have ended.
    pub(crate) fn all_begun(&self) -> Result<()> {
        match self.all_begun.swap(true, AcqRel) {
            true => Ok(()),
            false => self.close(),
        }
    }

    /// One output less. The last one compares.
    fn close(&self) -> Result<()> {
        match self.open.fetch_sub(1, AcqRel) == 1 && !self.left_early.load(Acquire) {
            true => self.check(),
            false => Ok(()),
        }
    }

    /// Compares the rows that were taken with those that were given.
    pub(crate) fn check(&self) -> Result<()> {
        check_rows(|| self.operator.clone(), self.taken.load(Relaxed), self.given.load(Relaxed))
    }
}

/// Compares the rows that an operator, or a part of it, has taken with those that it has given.
pub(crate) fn check_rows(operator: impl FnOnce() -> String, taken: usize, given: usize) -> Result<()> {
    match taken == given {
        true => Ok(()),
        false => internal_err!("{} took {taken} rows and gave {given}", operator()),
    }
}

/// One output of an operator, which is not compared when it is dropped before its end.
#[derive(Debug)]
pub(crate) struct Output {
    balance: Arc<RowBalance>,
    is_open: bool,
}

impl Output {
    /// The rows of this output, which are counted when they go.
    pub(crate) fn of(self, batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
        #[cfg(test)]
        let batches = faults::tampered(self.balance.fault, batches);
        Box::pin(Given { batches, output: self })
    }

    /// Says that there are no more rows in it.
    pub(crate) fn end(&mut self) -> Result<()> {
        match std::mem::take(&mut self.is_open) {
            true => self.balance.close(),
            false => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_open {
            self.balance.left_early.store(true, Release);
        }
    }
}

struct Taken {
    batches: SendableRecordBatchStream,
    balance: Arc<RowBalance>,
}

impl Stream for Taken {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.batches.as_mut().poll_next(cx));
        if let Some(Ok(batch)) = &next {
            self.balance.take(batch.num_rows());
        }
        Poll::Ready(next)
    }
}

impl RecordBatchStream for Taken {
    fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }
}

struct Given {
    batches: SendableRecordBatchStream,
    output: Output,
}

impl Stream for Given {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.batches.as_mut().poll_next(cx));
        Poll::Ready(match next {
            Some(Ok(batch)) => {
                self.output.balance.give(batch.num_rows());
                Some(Ok(batch))
            }
            Some(Err(e)) => Some(Err(e)),
            None => self.output.end().err().map(Err),
        })
    }
}

impl RecordBatchStream for Given {
    fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }
}

/// Losses on purpose, between what an operator takes and what it gives.
#[cfg(test)]
pub(crate) mod faults {
    use datafusion::execution::{SendableRecordBatchStream, TaskContext};
    use futures::{StreamExt, stream};

    use super::super::task::stream_of;

    /// What goes wrong with the first batch of each output that has rows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// It is dropped.
        Dropped,
        /// It is given twice.
        Twice,
        /// It is cut one row too early.
        OffByOne,
    }

    /// An extension of a session: the fault, and the operators to which it happens, by a part of their names.
    #[derive(Debug)]
    pub(crate) struct Faults {
        pub(crate) operator: &'static str,
        pub(crate) fault: Fault,
    }

    pub(crate) fn of_operator(operator: &str, context: &TaskContext) -> Option<Fault> {
        let faults = context.session_config().get_extension::<Faults>()?;
        operator.contains(faults.operator).then_some(faults.fault)
    }

    pub(crate) fn tampered(fault: Option<Fault>, batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let Some(fault) = fault else { return batches };
        let schema = batches.schema();
        let mut is_done = false;
        let tampered = batches.flat_map(move |batch| {
            let Ok(batch) = batch else { return stream::iter(vec![batch]) };
            if batch.num_rows() == 0 || std::mem::replace(&mut is_done, true) {
                return stream::iter(vec![Ok(batch)]);
            }
            stream::iter(match fault {
                Fault::Dropped => Vec::new(),
                Fault::Twice => vec![Ok(batch.clone()), Ok(batch)],
                Fault::OffByOne => vec![Ok(batch.slice(0, batch.num_rows() - 1))],
            })
        });
        stream_of(schema, tampered.boxed())
    }
}

#[cfg(test)]
mod tests;
