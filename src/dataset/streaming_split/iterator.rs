//! [`SplitIterator`]: one of the consumers.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::dealer::{Shared, deal_epochs};
use super::options::{SplitBarrier, SplitOptions};
use super::table::{Next, Table};
use crate::dataset::{Dataset, ResumeToken};
use crate::runtime::{Drivers, on_io_thread};
use crate::store::BlockHandle;

/// One of several consumers of a dataset. [`next_epoch`](Self::next_epoch) begins an epoch, and
/// [`next_batch`](Self::next_batch) gives its batches until there are no more. Dropped inside an epoch, it is lost, and
/// the others get an error.
pub struct SplitIterator {
    index: usize,
    barrier: bool,
    max_wait: Option<Duration>,
    shared: Arc<Shared>,
    /// Ends with the last consumer.
    _dealer: Arc<Drivers<()>>,
}

impl Dataset {
    /// `n` iterators over the dataset, for as many consumers at once, in as many epochs as they ask for. Rows are dealt
    /// by turns: what is in batch `k` of iterator `i` depends on `k`, `i`, `n` and the dataset alone.
    ///
    /// # Errors
    ///
    /// Where options do not go together. What fails later is an error of all iterators.
    pub fn streaming_split(&self, n: usize, options: SplitOptions) -> Result<Vec<SplitIterator>> {
        let deal = options.deal(n)?;
        let table = Table::new(n, options.buffer_bytes.0.max(1));
        let first_epoch = options.resume.as_ref().map_or(0, ResumeToken::epoch);
        let shared = Arc::new(Shared::new(table, Arc::clone(self.context.store()), first_epoch));
        let dealer = deal_epochs(Arc::clone(&shared), self.clone(), deal, options.resume.clone());
        let dealer = Arc::new(Drivers::start([dealer]));
        let iterator = |index| SplitIterator {
            index,
            barrier: options.barrier == SplitBarrier::Epoch,
            max_wait: options.max_wait,
            shared: Arc::clone(&shared),
            _dealer: Arc::clone(&dealer),
        };
        Ok((0..n).map(iterator).collect())
    }
}

impl SplitIterator {
    /// The number of the consumer, from 0 on.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Begins the next epoch, and gives its number. What is left of the one before is given up. With a barrier it
    /// returns when all consumers have finished that one, or given it up.
    ///
    /// # Errors
    ///
    /// Where the dataset fails, another consumer is lost, or others are waited for longer than the options allow.
    pub async fn next_epoch(&mut self) -> Result<u64> {
        self.shared.change(|table| table.arrive(self.index));
        self.until(|table| {
            if let Some(gone) = table.gone() {
                return Some(exec_err!("consumer {gone} of the split is gone, and has no part in another epoch"));
            }
            table.enter(self.index, self.barrier).then(|| Ok(table.at(self.index).0 + self.shared.first_epoch))
        })
        .await
    }

    /// The next batch of the epoch; `None` at its end, and outside of one. That it is asked for says that the batch
    /// before is done with.
    ///
    /// # Errors
    ///
    /// As [`next_epoch`](Self::next_epoch).
    pub async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let part = self.until(|table| match table.next(self.index) {
            Next::Part(part) => Some(Ok(Some(part))),
            Next::Ended => Some(Ok(None)),
            Next::Wait => None,
        });
        let Some(part) = part.await? else { return Ok(None) };
        let block: BlockHandle = part.rows;
        match block.batch_in_memory(0) {
            Some(batch) => Ok(Some(batch)),
            None => on_io_thread(move || block.get_batch(0)).await.map(Some),
        }
    }

    /// Says that the last batch is done with, before the next one is asked for.
    pub fn ack(&mut self) {
        self.shared.change(|table| table.acknowledge(self.index));
    }

    /// The position behind the turn of the last batch that this consumer got. A split that gets it as `resume` goes on
    /// there: take it when all consumers are at the same turn.
    ///
    /// # Errors
    ///
    /// Where the dataset does not give the same rows in the same order again, and outside of an epoch.
    pub fn token(&self) -> Result<ResumeToken> {
        let table = self.shared.table.lock();
        let (epoch, _) = table.at(self.index);
        self.shared.token(epoch, table.position_of(self.index))
    }

    /// Waits until something comes out of the table.
    async fn until<T>(&self, mut look: impl FnMut(&mut Table<BlockHandle>) -> Option<Result<T>>) -> Result<T> {
        let began = Instant::now();
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            {
                let mut table = self.shared.table.lock();
                if let Some(stopped) = table.stopped() {
                    return exec_err!("{}", stopped.message);
                }
                if let Some(found) = look(&mut table) {
                    drop(table);
                    self.shared.changed.notify_waiters();
                    return found;
                }
            }
            let Some(max_wait) = self.max_wait else {
                changed.await;
                continue;
            };
            let left = max_wait.saturating_sub(began.elapsed());
            if tokio::time::timeout(left, changed).await.is_err() {
                let others = self.shared.table.lock().waits_for(self.index);
                let others = match others.as_slice() {
                    [] => "the dataset".to_owned(),
                    [one] => format!("consumer {one}"),
                    many => {
                        format!("consumers {}", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
                    }
                };
                return exec_err!("consumer {} has waited for {others} for {max_wait:?}", self.index);
            }
        }
    }
}

impl Shared {
    /// The token of a position in an epoch, counted from the first one.
    fn token(&self, epoch: u64, position: Option<&crate::dataset::iterate::Position>) -> Result<ResumeToken> {
        let epoch = epoch + self.first_epoch;
        let origins = self.origins.lock();
        let origin = origins.iter().find(|(of, _)| *of == epoch).map(|(_, origin)| origin);
        origin.ok_or_else(|| exec_datafusion_err!("epoch {epoch} of the split has not begun"))?.token(position)
    }
}

impl Drop for SplitIterator {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.change(|table| {
            let ((epoch, turn), last) = (table.at(self.index), table.acknowledged_by_all());
            let token = shared.token(last.0, table.position_of_all());
            if table.leave(self.index) {
                let epoch = epoch + shared.first_epoch;
                let token = token.map_or_else(|e| format!("there is no token: {e}"), |token| token.to_string());
                table.stop(format!(
                    "consumer {} of the split was lost in epoch {epoch} behind turn {turn}; all have acknowledged {} turns, \
                     and can go on there with this token: {token}",
                    self.index, last.1
                ));
            }
        });
    }
}

impl fmt::Debug for SplitIterator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SplitIterator({})", self.index)
    }
}
