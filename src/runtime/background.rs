//! Producing rows on the session's threads while a consumer waits for them.

use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
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
        loop {
            let (parcel, ended) = next_parcel(&mut batches).await;
            if (!parcel.is_empty() && send.send(parcel).await.is_err()) || matches!(ended, Some(Ok(()))) {
                return Ok(());
            }
            if let Some(Err(e)) = ended {
                return Err(e);
            }
        }
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

/// The next batch with those that need no waiting, and how the stream has ended, if it has.
async fn next_parcel(batches: &mut SendableRecordBatchStream) -> (Vec<RecordBatch>, Option<Result<()>>) {
    let mut parcel = Vec::new();
    let mut next = batches.try_next().await;
    let (began, mut bytes) = (Instant::now(), 0);
    loop {
        match next {
            Ok(Some(batch)) => {
                bytes += sliced_bytes(&batch);
                parcel.push(batch);
            }
            Ok(None) => return (parcel, Some(Ok(()))),
            Err(e) => return (parcel, Some(Err(e))),
        }
        if bytes >= PARCEL_BYTES || began.elapsed() >= PARCEL_TIME {
            return (parcel, None);
        }
        match batches.try_next().now_or_never() {
            Some(found) => next = found,
            None => return (parcel, None),
        }
    }
}
