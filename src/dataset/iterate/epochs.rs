//! [`Epochs`]: the batches of a pipeline, epoch by epoch.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, plan_err};
use futures::{Stream, StreamExt};

use super::token::{Apart, Position};
use super::{Batches, IterOptions, IterStats};
use crate::dataset::{Dataset, DatasetPipeline};
use crate::token::ResumeToken;

impl DatasetPipeline {
    /// Batches, epoch by epoch: each ends with its short batch. At most `max` epochs, or all. The next epoch is made
    /// while one is consumed.
    ///
    /// # Errors
    ///
    /// As [`DatasetPipeline::iter_batches`], and where there is a local shuffle on top, which would mix epochs.
    pub async fn iter_epochs(&self, max: impl Into<Option<u64>>, options: IterOptions) -> Result<Epochs> {
        if options.epoch.is_some() {
            return plan_err!("a pipeline counts its epochs itself; a resume token goes on in any of them");
        }
        if options.local_shuffle_buffer_size.is_some() {
            return plan_err!(
                "a local shuffle on top mixes rows of two epochs; do it in each window: \
                 foreach_window(|window| window.local_shuffle(..))"
            );
        }
        let dataset: Dataset = self.clone().into_dataset();
        let batches =
            dataset.batches(IterOptions { epoch: Some(0), ..options }, Apart::Epochs).await?.observed(&dataset.state);
        Ok(Epochs { batches, waiting: None, current: None, handed: None, left: max.into() })
    }
}

/// The batches of a pipeline, epoch by epoch.
#[derive(Debug)]
pub struct Epochs {
    batches: Batches,
    /// The first batch of an epoch that has not begun.
    waiting: Option<RecordBatch>,
    current: Option<u64>,
    /// Behind the last batch of an epoch that was handed out.
    handed: Option<Position>,
    /// How many epochs there are yet, at most.
    left: Option<u64>,
}

impl Epochs {
    /// The next epoch; `None` behind the last one. What was not read of the one before is passed over, and counted in
    /// the stats.
    ///
    /// # Errors
    ///
    /// Where the pipeline fails.
    pub async fn next_epoch(&mut self) -> Result<Option<Epoch<'_>>> {
        while let Some(batch) = (Epoch { epochs: self }).next().await {
            let rows = batch?.num_rows() as u64;
            self.batches.skipped(rows);
        }
        if self.left == Some(0) {
            return Ok(None);
        }
        if self.waiting.is_none() {
            self.waiting = self.batches.next().await.transpose()?;
        }
        self.current = self.waiting.as_ref().and_then(|_| self.epoch_of_last());
        self.left = self.left.map(|left| left - 1);
        Ok(self.current.map(|_| Epoch { epochs: self }))
    }

    /// The epoch of the batch that came last.
    fn epoch_of_last(&self) -> Option<u64> {
        self.batches.position().map(|position| position.mark.id.task_of_source() as u64)
    }

    /// As [`Batches::token`].
    ///
    /// # Errors
    ///
    /// As [`Batches::token`].
    pub fn token(&self) -> Result<ResumeToken> {
        self.batches.origin().token(self.handed.as_ref())
    }

    /// As [`Batches::stats`].
    pub fn stats(&self) -> IterStats {
        self.batches.stats()
    }
}

/// The batches of one epoch.
#[derive(Debug)]
pub struct Epoch<'a> {
    epochs: &'a mut Epochs,
}

impl Epoch<'_> {
    /// Its number, from 0 on.
    pub fn number(&self) -> u64 {
        self.epochs.current.unwrap_or(0)
    }

    /// As [`Batches::token`].
    ///
    /// # Errors
    ///
    /// As [`Batches::token`].
    pub fn token(&self) -> Result<ResumeToken> {
        self.epochs.token()
    }
}

impl Stream for Epoch<'_> {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let epochs = &mut self.epochs;
        let Some(current) = epochs.current else { return Poll::Ready(None) };
        if epochs.waiting.is_none() {
            epochs.waiting = match ready!(epochs.batches.poll_next_unpin(context)) {
                Some(Ok(batch)) => Some(batch),
                Some(Err(e)) => return Poll::Ready(Some(Err(e))),
                None => None,
            };
        }
        if epochs.waiting.is_none() || epochs.epoch_of_last() != Some(current) {
            epochs.current = None;
            return Poll::Ready(None);
        }
        epochs.handed = epochs.batches.position();
        Poll::Ready(epochs.waiting.take().map(Ok))
    }
}
