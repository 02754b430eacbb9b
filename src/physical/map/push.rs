//! Steps that work on one batch at a time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use futures::{Stream, ready};

use super::StepTask;
use crate::physical::FailureLog;

/// The state of a step within one task.
pub(super) trait Push: Send {
    /// Takes the next batch of the task and appends what comes of it.
    fn push(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()>;

    /// The task gives up after an error: there will be no more batches.
    fn give_up(&mut self) -> Result<()> {
        Ok(())
    }

    /// The task has no more batches.
    fn finish(&mut self, _out: &mut VecDeque<RecordBatch>) -> Result<()> {
        Ok(())
    }
}

/// The batches that come of pushing `input` through `push`. Empty batches are dropped on both sides.
pub(super) fn push_stream(
    schema: SchemaRef,
    input: SendableRecordBatchStream,
    task: &StepTask,
    push: impl Push + Unpin + 'static,
) -> SendableRecordBatchStream {
    let (log, context) = (Arc::clone(&task.log), Arc::clone(&task.context));
    Box::pin(PushStream { schema, input, push, out: VecDeque::new(), ended: false, log, context })
}

struct PushStream<P> {
    schema: SchemaRef,
    input: SendableRecordBatchStream,
    push: P,
    out: VecDeque<RecordBatch>,
    ended: bool,
    log: Arc<FailureLog>,
    context: Arc<TaskContext>,
}

impl<P: Push + Unpin> Stream for PushStream<P> {
    type Item = Result<RecordBatch>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(batch) = this.out.pop_front() {
                if batch.num_rows() > 0 {
                    return Poll::Ready(Some(Ok(batch)));
                }
                continue;
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let pushed = match ready!(this.input.as_mut().poll_next(cx)) {
                Some(Ok(batch)) if batch.num_rows() == 0 => Ok(()),
                Some(Ok(batch)) => this.push.push(batch, &mut this.out),
                Some(Err(e)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(e)));
                }
                None => {
                    this.ended = true;
                    this.push.finish(&mut this.out)
                }
            };
            if let Err(e) = pushed {
                this.ended = true;
                // What came before the error stays when the task may give up.
                let given_up = match this.log.may_give_up(&e, &this.context) {
                    true => this.push.give_up(),
                    false => Err(e),
                };
                if let Err(e) = given_up {
                    this.out.clear();
                    return Poll::Ready(Some(Err(e)));
                }
            }
        }
    }
}

impl<P: Push + Unpin> RecordBatchStream for PushStream<P> {
    fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }
}
