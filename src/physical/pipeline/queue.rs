//! What a window has made and nobody has taken: its plan runs ahead of the consumer by a bounded number of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::history::History;
use super::start::Start;
use crate::block::{Block, sliced_bytes};
use crate::physical::memory::stage_memory;
use crate::physical::place::{Mark, MarkLog, Marked, marked_rows};
use crate::physical::tasks::{block_batches, check_rows};
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// A window runs ahead by this part of the memory of a stage, and by at least and at most so many KiB.
const AHEAD_PART: usize = 8;
const MIN_AHEAD_KIB: usize = 1 << 10;
const MAX_AHEAD_KIB: usize = 64 << 10;

/// What all windows of a pipeline that runs share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) context: Arc<TaskContext>,
    pub(super) store: Arc<BlockStore>,
    pub(super) owner: Arc<Owner>,
    pub(super) history: History,
    /// Rows that windows gave.
    pub(super) rows: Arc<AtomicU64>,
}

/// A window that has begun.
pub(super) struct Window {
    pub(super) start: Start,
    pub(super) schema: SchemaRef,
    made: mpsc::UnboundedReceiver<Result<Made>>,
    driver: Drivers<()>,
    shared: Shared,
    taken_in: Arc<AtomicUsize>,
    flight: Flight,
}

/// Rows of a window, on their way to the consumer.
struct Made {
    /// Whether they are of another task of the window than those before.
    begins_block: bool,
    handle: BlockHandle,
    _room: OwnedSemaphorePermit,
}

/// That a window is in flight, until it drops.
struct Flight {
    label: (u32, u32),
    holds_blocks: bool,
    history: History,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.history.end(self.label, self.holds_blocks);
    }
}

/// Rows of a window as they are taken.
pub(super) struct Piece {
    /// Where the first of them stands: the window, and its number in it.
    pub(super) marked: Marked,
    /// Whether they are of another task of the window than those before.
    pub(super) begins_block: bool,
}

impl Window {
    /// Starts the plan of a window. `permit` says that it may be in flight.
    pub(super) fn start(
        start: Start,
        plan: Arc<dyn ExecutionPlan>,
        holds_blocks: bool,
        shared: &Shared,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self> {
        let log = MarkLog::default();
        shared.history.begin(&start, &plan, &log, !holds_blocks);
        let flight = Flight { label: start.label, holds_blocks, history: shared.history.clone(), _permit: permit };
        let ahead = (stage_memory(&shared.context)? / (AHEAD_PART << 10)).clamp(MIN_AHEAD_KIB, MAX_AHEAD_KIB);
        let rows = marked_rows(&plan, &shared.context, &shared.owner, &start.inside, None)?;
        let mut rows = log.noting(start.row, &start.inside, rows);
        let (send, made) = mpsc::unbounded_channel();
        let (taken_in, schema, all) = (Arc::new(AtomicUsize::new(0)), plan.schema(), shared.clone());
        let (counted, room) = (Arc::clone(&taken_in), Arc::new(Semaphore::new(ahead)));
        let driver = async move {
            // What the plan holds goes with its rows.
            let _plan = plan;
            let mut last: Option<Mark> = None;
            loop {
                let marked = match rows.try_next().await {
                    Ok(Some(marked)) => marked,
                    Ok(None) => return Ok(()),
                    Err(e) => {
                        let _nobody_waits = send.send(Err(e));
                        return Ok(());
                    }
                };
                let (batch, mark) = (marked.batch, marked.mark);
                let begins_block = last.as_ref().is_none_or(|last| last.id != mark.id);
                last = Some(mark);
                counted.fetch_add(batch.num_rows(), Relaxed);
                all.rows.fetch_add(batch.num_rows() as u64, Relaxed);
                let kib = (sliced_bytes(&batch) >> 10).clamp(1, ahead) as u32;
                let room = Arc::clone(&room).acquire_many_owned(kib).await;
                let room = room.map_err(|e| exec_datafusion_err!("a window of a pipeline was closed: {e}"))?;
                let handle = all.store.put(Block::new(batch.schema(), vec![batch]), NextUse::Soon, &all.owner);
                let made = handle.map(|handle| Made { begins_block, handle, _room: room });
                if send.send(made).is_err() {
                    return Ok(());
                }
            }
        };
        let driver = Drivers::start([driver]);
        Ok(Self { start, schema, made, driver, shared: shared.clone(), taken_in, flight })
    }

    /// Its rows as they are made. The window is in flight until the last of them has been taken.
    pub(super) fn pieces(self) -> BoxStream<'static, Result<Piece>> {
        let Self { start, made, driver, shared, taken_in, flight, .. } = self;
        let (epoch, window) = start.label;
        let id = crate::block::TaskId::from(vec![epoch, window]);
        let first_row = start.row;
        let is_first = start.is_first;
        let taking = (made, driver, flight, None::<Instant>);
        let made = stream::try_unfold(taking, move |(mut made, mut driver, flight, asked)| {
            let shared = shared.clone();
            async move {
                let began = asked.unwrap_or_else(Instant::now);
                let next = made.recv().await.transpose()?;
                if asked.is_none() {
                    shared.history.waited(began.elapsed(), is_first);
                }
                if next.is_none() {
                    // It ended, or panicked.
                    while let Some(result) = driver.next().await {
                        result?;
                    }
                }
                Ok::<_, DataFusionError>(next.map(|next| (next, (made, driver, flight, Some(began)))))
            }
        });
        let batches = made.map_ok(|Made { begins_block, handle, _room }| {
            let mut begins = begins_block;
            let batches = block_batches(handle);
            batches.map_ok(move |batch| {
                let _room = &_room;
                (std::mem::take(&mut begins), batch)
            })
        });
        let given = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&given);
        let pieces = batches.try_flatten().map_ok(move |(begins_block, batch)| {
            let before = counted.fetch_add(batch.num_rows(), Relaxed) as u64;
            let mark = Mark { id: id.clone(), row: first_row + before };
            Some(Piece { marked: Marked { mark, batch }, begins_block })
        });
        let ended = stream::once(async move {
            let what = || format!("window {window} of epoch {epoch}");
            check_rows(what, taken_in.load(Relaxed), given.load(Relaxed))?;
            Ok(None)
        });
        pieces.chain(ended).try_filter_map(|piece| std::future::ready(Ok(piece))).boxed()
    }
}
