//! [`SplitIterator`]: one of the consumers.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_err};

use super::shared::SplitTable;
use super::split::Split;
use super::table::{Entry, Next};
use crate::observability::ConsumerWaits;
use crate::runtime::on_io_thread;
use crate::store::BlockHandle;
use crate::token::ResumeToken;

/// One of several consumers of a dataset. [`next_epoch`](Self::next_epoch) begins an epoch, and
/// [`next_batch`](Self::next_batch) gives its batches until there are no more. Dropped inside an epoch, it is lost:
/// [`OnLost`](super::OnLost) says what that means for the others.
pub struct SplitIterator {
    index: usize,
    split: Arc<Split>,
    /// It came back into the middle of this epoch.
    inside: Option<u64>,
}

impl SplitIterator {
    /// Those of all consumers.
    pub(super) fn all(split: &Arc<Split>) -> Vec<Self> {
        (0..split.consumers()).map(|index| Self { index, split: Arc::clone(split), inside: None }).collect()
    }

    /// That of a consumer that is away, from its first batch on that was not acknowledged.
    pub(crate) fn rejoining(split: &Arc<Split>, index: usize) -> Result<Self> {
        Ok(Self { index, inside: split.rejoin(index)?, split: Arc::clone(split) })
    }

    /// The number of the consumer, from 0 on.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The split of which it is one.
    pub(crate) fn split(&self) -> &Arc<Split> {
        &self.split
    }

    /// Begins the next epoch, and gives its number; `None` where a pipeline has no more. What is left of the epoch
    /// before is given up. With a barrier it returns when all consumers have finished that one, or given it up.
    ///
    /// # Errors
    ///
    /// Where the dataset fails, another consumer is lost, or others are waited for longer than the options allow.
    pub async fn next_epoch(&mut self) -> Result<Option<u64>> {
        if let Some(epoch) = self.inside.take() {
            return Ok(Some(epoch));
        }
        let index = self.index;
        self.split.shared.change(|table| table.arrive(index));
        self.until(|table| {
            if let Some(gone) = table.gone_before_next(index) {
                return Some(exec_err!("consumer {gone} of the split is gone, and has no part in another epoch"));
            }
            match table.enter(index) {
                Entry::Entered(epoch) => Some(Ok(Some(epoch))),
                Entry::Finished => Some(Ok(None)),
                Entry::Wait => None,
            }
        })
        .await
        .inspect(|_| self.split.shared.goes_on(index, 0))
    }

    /// The next batch of the epoch; `None` at its end, and outside of one. That it is asked for says that the batch
    /// before is done with.
    ///
    /// # Errors
    ///
    /// As [`next_epoch`](Self::next_epoch).
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        self.ack();
        self.next_unacknowledged().await
    }

    /// The same, which says nothing of batches before.
    pub(crate) async fn next_unacknowledged(&mut self) -> Result<Option<RecordBatch>> {
        let index = self.index;
        let part = self.until(|table| match table.next(index) {
            Next::Part(part) => Some(Ok(Some(part))),
            Next::Ended => Some(Ok(None)),
            Next::Wait => None,
        });
        let Some(part) = part.await? else {
            self.split.shared.goes_on(index, 0);
            return Ok(None);
        };
        let block: BlockHandle = part.rows;
        let batch = match block.batch_in_memory(0) {
            Some(batch) => batch,
            None => on_io_thread(move || block.get_batch(0)).await?,
        };
        self.split.shared.goes_on(index, batch.num_rows() as u64);
        Ok(Some(batch))
    }

    /// Says that all batches up to now are done with, before the next one is asked for.
    pub fn ack(&mut self) {
        self.split.acknowledge(self.index, usize::MAX);
    }

    /// The position behind the turn of the last batch that this consumer got. A split that gets it as `resume` goes on
    /// there: take it when all consumers are at the same turn.
    ///
    /// # Errors
    ///
    /// Where the dataset does not give the same rows in the same order again, outside of an epoch, and by demand.
    pub fn token(&self) -> Result<ResumeToken> {
        let standing = self.split.shared.look(|table| table.position_of(self.index).cloned());
        self.split.shared.token(standing.as_ref())
    }

    /// Consumer `index` once more, which was dropped: [`next_epoch`](Self::next_epoch) of it gives the epoch in which it
    /// was, and then it gets what it had not acknowledged.
    ///
    /// # Errors
    ///
    /// Where there is no such consumer, it was not dropped, or was away for too long, and without
    /// [`OnLost::Wait`](super::OnLost::Wait).
    pub fn rejoin(&self, index: usize) -> Result<Self> {
        Self::rejoining(&self.split, index)
    }

    /// Waits until something comes out of the table.
    async fn until<T>(&self, mut look: impl FnMut(&mut SplitTable) -> Option<Result<T>>) -> Result<T> {
        let shared = &self.split.shared;
        let mut is_waiting = false;
        let found = shared.wait_for(|table| {
            let found = match table.stopped() {
                Some(stopped) => Some(Err(stopped.clone())),
                None => look(table).map(Ok),
            };
            if found.is_none() && !is_waiting {
                is_waiting = true;
                shared.waits(self.index);
            }
            found
        });
        let found = match self.split.max_wait {
            None => found.await,
            Some(max_wait) => match tokio::time::timeout(max_wait, found).await {
                Ok(found) => found,
                Err(_) => {
                    let waits_for = shared.look(|table| table.waits_for(self.index));
                    let waits = ConsumerWaits { consumer: self.index, waits_for, waited: max_wait };
                    return exec_err!("consumer {} has waited for {} for {max_wait:?}", self.index, waits.whom());
                }
            },
        };
        // What it took may be what others wait for.
        shared.change(|_| ());
        found.unwrap_or_else(|stopped| Err(shared.error(&stopped)))
    }
}

impl Drop for SplitIterator {
    fn drop(&mut self) {
        self.split.shared.leave(self.index);
    }
}

impl fmt::Debug for SplitIterator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SplitIterator({})", self.index)
    }
}
