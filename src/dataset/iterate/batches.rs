//! [`Batches`]: the batches of a dataset, one after the other.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::session_state::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::ahead::Ahead;
use super::clock::Clock;
use super::run::MarkedRows;
use super::token::{Apart, Origin, Position};
use super::{IterOptions, IterStats};
use crate::block::{compact_views, sliced_bytes};
use crate::observability::{IteratorStatus, ObservedIterator, Observers};
use crate::physical::{Mark, Marked, MarkedStream};
use crate::runtime::on_io_thread;
use crate::token::ResumeToken;

/// A batch that is a block has at most so many bytes: its rows are copied, and several are on their way.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// So many batches are handed over at once, at most.
const MAX_TOGETHER: usize = 16;
/// Threads on which functions of [`Batches::map_ahead`] run.
const MAP_THREADS: usize = 4;

/// The batches of a dataset, in order; or, behind [`Batches::map_ahead`], what a function makes of them. As a stream,
/// or [`blocking`](Batches::blocking) as an iterator. Dropping it stops the work behind it.
pub struct Batches<T = RecordBatch> {
    schema: SchemaRef,
    items: BoxStream<'static, Result<(T, Position)>>,
    origin: Arc<Origin>,
    clock: Arc<Clock>,
    /// Behind the last batch that was handed out.
    position: Arc<Mutex<Option<Position>>>,
    /// When somebody began to wait, and when the last batch was handed out.
    asked: Option<Instant>,
    given: Option<Instant>,
    /// What others can see of it.
    status: Option<Arc<BatchesStatus>>,
}

impl Batches {
    /// Begins to make batches of `rows` as `options` say, which somebody has waited for since `began`. None
    /// has rows of two parts of a pipeline that are kept `apart`.
    pub(super) fn start(rows: MarkedRows, origin: Origin, options: &IterOptions, apart: Apart, began: Instant) -> Self {
        let clock = Arc::new(Clock::since(began));
        let (schema, size) = (Arc::clone(&rows.schema), options.batch_size);
        let drop_short = size.filter(|_| options.drop_last);
        let cutter = Cutter {
            rows: rows.rows,
            plan: rows.plan,
            size,
            block_bytes: rows.block_bytes.min(MAX_BATCH_BYTES),
            schema: Arc::clone(&schema),
            pending: VecDeque::new(),
            pending_rows: 0,
            pending_bytes: 0,
            apart,
            of_next_part: None,
            before: origin.rows_before(),
            clock: Arc::clone(&clock),
            ended: false,
        };
        let cut = stream::try_unfold(cutter, |mut cutter| async move {
            let items = cutter.next_together().await?;
            Ok(items.map(|items| (stream::iter(items.into_iter().map(Ok)), cutter)))
        });
        let cut = Ahead::of(cut.boxed(), options.prefetch_batches.max(1));
        let wanted = move |(batch, _): &(RecordBatch, Position)| {
            std::future::ready(drop_short.is_none_or(|size| batch.num_rows() == size))
        };
        let items = cut.try_flatten().try_filter(wanted).boxed();
        let (origin, position) = (Arc::new(origin), Arc::default());
        Self { schema, items, origin, clock, position, asked: None, given: None, status: None }
    }
}

impl<T: Send + 'static> Batches<T> {
    /// The next batch, with where it ends.
    pub(in crate::dataset) async fn next_positioned(&mut self) -> Result<Option<(T, Position)>> {
        self.items.try_next().await
    }

    /// Behind the last batch that was handed out.
    pub(super) fn position(&self) -> Option<Position> {
        self.position.lock().clone()
    }

    /// The same, in the table of the iterators of a session.
    pub(in crate::dataset) fn observed(mut self, state: &SessionState) -> Self {
        if let Some(observers) = state.config().get_extension::<Observers>() {
            let (clock, origin, position) =
                (Arc::clone(&self.clock), Arc::clone(&self.origin), Arc::clone(&self.position));
            let name = observers.name_of_iterator("iterator");
            let status = Arc::new(BatchesStatus { name, clock, origin, position });
            observers.add_iterator(&(Arc::clone(&status) as Arc<dyn ObservedIterator>));
            self.status = Some(status);
        }
        self
    }

    /// Rows that were handed out and are not used.
    pub(super) fn skipped(&self, rows: u64) {
        self.clock.skipped.fetch_add(rows, Relaxed);
    }

    /// What makes tokens of positions.
    pub(in crate::dataset) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Columns of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Calls `function` for the batches that come, before they are asked for: Ray's `collate_fn`. Up to 4 run at once,
    /// on threads of their own; what they make comes in the order of the batches.
    pub fn map_ahead<U, F>(self, function: F) -> Batches<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<U> + Send + Sync + 'static,
    {
        let (function, clock) = (Arc::new(function), Arc::clone(&self.clock));
        let items = self.items.map(move |item| {
            let (function, clock) = (Arc::clone(&function), Arc::clone(&clock));
            async move {
                let (item, position) = item?;
                let mapped = on_io_thread(move || {
                    let began = Instant::now();
                    let mapped = function(item);
                    clock.mapping.add(began.elapsed());
                    mapped
                });
                Ok((mapped.await?, position))
            }
        });
        Batches {
            items: items.buffered(MAP_THREADS).boxed(),
            schema: self.schema,
            origin: self.origin,
            clock: self.clock,
            position: self.position,
            asked: None,
            given: None,
            status: self.status,
        }
    }

    /// The position behind the last batch handed out, not behind those made ahead: an iterator that gets it as `resume`
    /// goes on from there.
    ///
    /// # Errors
    ///
    /// Where the dataset does not give the same rows in the same order again; the error says why, and what helps.
    pub fn token(&self) -> Result<ResumeToken> {
        self.origin.token(self.position.lock().as_ref())
    }

    /// Where the time went, up to now.
    pub fn stats(&self) -> IterStats {
        self.clock.stats()
    }

    /// The same as an iterator, which holds up its thread while it waits. It works outside of a runtime, as long as the
    /// one lives in which it was begun.
    pub fn blocking(self) -> BlockingBatches<T> {
        BlockingBatches(self)
    }

    fn handed_out(&mut self, rows: u64) {
        let (clock, now) = (&self.clock, Instant::now());
        clock.is_waiting.store(false, Relaxed);
        if let Some(asked) = self.asked.take() {
            clock.waiting.add(now - asked);
        }
        if clock.batches.fetch_add(1, Relaxed) == 0 {
            clock.first.add(clock.began.elapsed());
        }
        clock.num_rows.fetch_add(rows, Relaxed);
        self.given = Some(now);
    }
}

impl<T: Send + 'static> Stream for Batches<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(given) = self.given.take() {
            self.clock.user.add(given.elapsed());
        }
        if self.asked.is_none() {
            self.asked = Some(Instant::now());
            self.clock.is_waiting.store(true, Relaxed);
        }
        Poll::Ready(match ready!(self.items.poll_next_unpin(context)) {
            Some(Ok((item, position))) => {
                let rows = position.rows;
                let before = self.position.lock().replace(position);
                let before = before.map_or(self.origin.rows_before(), |position| position.rows);
                self.handed_out(rows - before);
                Some(Ok(item))
            }
            Some(Err(e)) => Some(Err(e)),
            None => {
                let waited = self.asked.take().map_or(Duration::ZERO, |asked| asked.elapsed());
                self.clock.waiting.add(waited);
                None
            }
        })
    }
}

// Nothing of it is pinned: the stream inside is boxed.
impl<T> Unpin for Batches<T> {}

impl<T> std::fmt::Debug for Batches<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches").field("stats", &self.clock.stats()).finish_non_exhaustive()
    }
}

/// [`Batches`] as an iterator.
#[derive(Debug)]
pub struct BlockingBatches<T = RecordBatch>(Batches<T>);

impl<T: Send + 'static> BlockingBatches<T> {
    /// As [`Batches::token`].
    ///
    /// # Errors
    ///
    /// As [`Batches::token`].
    pub fn token(&self) -> Result<ResumeToken> {
        self.0.token()
    }

    /// As [`Batches::stats`].
    pub fn stats(&self) -> IterStats {
        self.0.stats()
    }
}

impl<T: Send + 'static> Iterator for BlockingBatches<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        crate::runtime::holding_up(|| futures::executor::block_on(self.0.next()))
    }
}

/// What is known of batches beside those who take them.
#[derive(Debug)]
struct BatchesStatus {
    name: String,
    clock: Arc<Clock>,
    origin: Arc<Origin>,
    position: Arc<Mutex<Option<Position>>>,
}

impl ObservedIterator for BatchesStatus {
    fn statuses(&self) -> Vec<IteratorStatus> {
        let stats = self.clock.stats();
        let position = self.position.lock().clone();
        let is_waiting = self.clock.is_waiting.load(Relaxed);
        let (epoch, window) = self.origin.epoch_and_window(position.as_ref());
        vec![IteratorStatus {
            name: self.name.clone(),
            consumer: 0,
            state: if is_waiting { "waits" } else { "works" },
            waits_for: if is_waiting { "the dataset".to_owned() } else { String::new() },
            epoch: Some(epoch),
            window,
            rows: stats.rows,
            waited: stats.waiting,
            user: stats.user,
            buffered_bytes: 0,
            token: self.origin.token(position.as_ref()).map(|token| token.to_string()).unwrap_or_default(),
        }]
    }
}

/// Cuts batches of a size out of rows, and knows where each ends.
struct Cutter {
    rows: MarkedStream,
    plan: Arc<dyn ExecutionPlan>,
    /// Rows of a batch; without that, a batch has those of a task, up to the bytes of a block.
    size: Option<usize>,
    block_bytes: usize,
    schema: SchemaRef,
    /// Rows that were not cut yet, and how many there are.
    pending: VecDeque<Marked>,
    pending_rows: usize,
    /// Their bytes, where that counts.
    pending_bytes: usize,
    /// What no batch has rows of two of, and the first rows of the one after those that were not cut yet.
    apart: Apart,
    of_next_part: Option<Marked>,
    /// Rows of the epoch that were cut.
    before: u64,
    clock: Arc<Clock>,
    ended: bool,
}

impl Cutter {
    /// The next batch, and those behind it whose rows are here already: each hand-over wakes somebody, which takes
    /// longer than cutting a batch.
    async fn next_together(&mut self) -> Result<Option<Vec<(RecordBatch, Position)>>> {
        let Some(first) = self.next().await? else { return Ok(None) };
        let mut together = vec![first];
        while let Some(size) = self.size
            && self.pending_rows >= size
            && together.len() < MAX_TOGETHER
        {
            together.push(self.cut(size)?);
        }
        Ok(Some(together))
    }

    async fn next(&mut self) -> Result<Option<(RecordBatch, Position)>> {
        loop {
            let began = Instant::now();
            let wanted = match (self.size, self.apart) {
                (Some(size), _) => size,
                (None, Apart::Batches) => self.pending_rows.max(1),
                (None, _) => usize::MAX,
            };
            let is_whole = self.ended || self.of_next_part.is_some();
            if self.pending_rows >= wanted || (is_whole && self.pending_rows > 0) {
                let batch = self.cut(wanted)?;
                self.clock.batching.add(began.elapsed());
                return Ok(Some(batch));
            }
            if let Some(marked) = self.of_next_part.take() {
                self.push(marked);
                continue;
            }
            if self.ended {
                return Ok(None);
            }
            let next = self.rows.try_next().await;
            self.clock.rows.add(began.elapsed());
            match next? {
                Some(marked) => match self.begins_next(&marked) {
                    true => self.of_next_part = Some(marked),
                    false => self.push(marked),
                },
                None => self.ended = true,
            }
        }
    }

    /// Whether the next rows are not of the batch of those that are pending.
    fn begins_next(&self, marked: &Marked) -> bool {
        let Some(last) = self.pending.back() else { return false };
        let is_full = || self.pending_bytes + sliced_bytes(&marked.batch) > self.block_bytes;
        self.apart.parts(&last.mark, &marked.mark)
            || (self.size.is_none() && (last.mark.id != marked.mark.id || is_full()))
    }

    fn push(&mut self, marked: Marked) {
        self.pending_rows += marked.batch.num_rows();
        self.pending_bytes += if self.size.is_none() { sliced_bytes(&marked.batch) } else { 0 };
        self.pending.push_back(marked);
    }

    /// The next rows, at most so many. They are copied only where they come from several batches.
    fn cut(&mut self, rows: usize) -> Result<(RecordBatch, Position)> {
        let (mut left, mut parts) = (rows, Vec::new());
        let mut mark = Mark::start();
        while left > 0
            && let Some(mut front) = self.pending.pop_front()
        {
            let taken = left.min(front.batch.num_rows());
            left -= taken;
            mark = front.mark.behind(taken);
            parts.push(front.batch.slice(0, taken));
            let more = front.batch.num_rows() - taken;
            if more > 0 {
                front = Marked { mark: mark.clone(), batch: front.batch.slice(taken, more) };
                self.pending.push_front(front);
            }
        }
        let batch = match parts.as_slice() {
            [one] => one.clone(),
            parts => concat_batches(&self.schema, parts)?,
        };
        // Whoever keeps or sends it shall not keep or send the blocks that it was cut from.
        let batch = compact_views(&batch)?;
        self.pending_rows -= batch.num_rows();
        // Without a size nothing is left.
        self.pending_bytes = 0;
        self.before += batch.num_rows() as u64;
        Ok((batch, Position { plan: Arc::clone(&self.plan), mark, rows: self.before }))
    }
}
