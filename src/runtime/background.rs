//! Producing rows on the session's threads while a consumer waits for them.

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::StreamExt;

/// Batches that may wait for the consumer.
const BATCHES_AHEAD: usize = 2;

/// The same batches, produced in the background: however long the next one takes, whoever waits for it stays free to do
/// something else, such as to give up. Dropping the stream cancels the work at its next await.
pub(crate) fn in_background(mut batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let mut builder = RecordBatchReceiverStream::builder(batches.schema(), BATCHES_AHEAD);
    let send = builder.tx();
    builder.spawn(async move {
        while let Some(batch) = batches.next().await {
            if send.send(batch).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    builder.build()
}
