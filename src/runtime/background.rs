//! Producing rows on the session's threads while a consumer waits for them.

use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::future::join;
use futures::{FutureExt, TryStreamExt, stream};
use tokio::sync::mpsc;

use super::Drivers;
use crate::block::sliced_bytes;

/// Parcels that may wait for the consumer.
const PARCELS_AHEAD: usize = 2;
/// Batches go over one by one, or so many of them as are there at once: to wake a thread for each takes longer than
/// many a batch. A parcel has as many bytes as this, at most one batch more.
const PARCEL_BYTES: usize = 1 << 20;
/// No batch waits longer for those that follow.
const PARCEL_TIME: Duration = Duration::from_micros(500);

/// The same batches, produced in the background: however long the next one takes, whoever waits for it stays free to do
/// something else, such as to give up. Dropping the stream cancels the work at its next await.
pub(crate) fn in_background(mut batches: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = batches.schema();
    let (send, receive) = mpsc::channel(PARCELS_AHEAD);
    let driver = async move {
        let mut next = batches.try_next().await;
        while let Some(first) = next? {
            let (parcel, then) = parcel(first, &mut batches);
            let sent = send.send(parcel);
            let (sent, said) = match then {
                // Meanwhile it goes on: who has begun to make a batch may hold what others wait for.
                Then::Asked => {
                    let (sent, said) = join(sent, batches.try_next()).await;
                    (sent, Some(said))
                }
                Then::NotAsked => (sent.await, None),
                Then::Said(said) => (sent.await, Some(said)),
            };
            if sent.is_err() {
                return Ok(());
            }
            next = match said {
                Some(said) => said,
                None => batches.try_next().await,
            };
        }
        Ok(())
    };
    let parcels = stream::try_unfold((receive, Drivers::start([driver])), |(mut receive, mut drivers)| async move {
        if let Some(parcel) = receive.recv().await {
            let parcel = stream::iter(parcel.into_iter().map(Ok));
            return Ok::<_, DataFusionError>(Some((parcel, (receive, drivers))));
        }
        while let Some(result) = drivers.next().await {
            result?;
        }
        Ok(None)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, parcels.try_flatten()))
}

/// What a stream was asked for last.
enum Then {
    /// Nothing: the parcel is full.
    NotAsked,
    /// The next batch, of which there is no word yet.
    Asked,
    /// The next batch, and this came.
    Said(Result<Option<RecordBatch>>),
}

/// A batch with those behind it that need no waiting.
fn parcel(first: RecordBatch, batches: &mut SendableRecordBatchStream) -> (Vec<RecordBatch>, Then) {
    let (began, mut bytes, mut parcel) = (Instant::now(), sliced_bytes(&first), vec![first]);
    while bytes < PARCEL_BYTES && began.elapsed() < PARCEL_TIME {
        match batches.try_next().now_or_never() {
            Some(Ok(Some(batch))) => {
                bytes += sliced_bytes(&batch);
                parcel.push(batch);
            }
            Some(end) => return (parcel, Then::Said(end)),
            None => return (parcel, Then::Asked),
        }
    }
    (parcel, Then::NotAsked)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::SchemaRef;
    use futures::StreamExt;
    use tokio::sync::Mutex;

    use super::*;

    fn batch() -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..4)) as _)]).unwrap()
    }

    /// Batches of a source that several streams take turns with, each of which takes a moment.
    fn turns(schema: SchemaRef, source: Arc<Mutex<usize>>) -> SendableRecordBatchStream {
        let next = |source: Arc<Mutex<usize>>| async move {
            let mut left = source.lock().await;
            tokio::task::yield_now().await;
            let batch = (*left > 0).then(batch);
            *left = left.saturating_sub(1);
            drop(left);
            Ok(batch.map(|batch| (batch, source)))
        };
        Box::pin(RecordBatchStreamAdapter::new(schema, stream::try_unfold(source, next)))
    }

    /// A stream that waits for its consumer holds up no other one.
    #[tokio::test]
    async fn a_stream_without_a_consumer_takes_no_turn_and_keeps_it() {
        let (schema, source) = (batch().schema(), Arc::new(Mutex::new(1000)));
        let _nobody_reads = in_background(turns(Arc::clone(&schema), Arc::clone(&source)));
        let read = in_background(turns(schema, source));
        let batches = tokio::time::timeout(Duration::from_secs(30), read.count()).await;
        assert!(batches.is_ok_and(|batches| batches > 900), "the other stream stalls");
    }
}
