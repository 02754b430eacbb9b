//! What the streams of a loop join do.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::build::{Build, MAX_ROWS, Marks};
use super::probe::{Probe, Prober, Shape};
use crate::physical::StageMetrics;
use crate::physical::exchange::collect_blocks;
use crate::physical::join::side::{MIN_BUILD_BYTES, build_memory};
use crate::physical::memory::stage_memory;
use crate::physical::tasks::{block_batches, check_rows};
use crate::store::{BlockHandle, BlockStore, NextUse};

/// A batch that is given has at most so many bytes, by what rows have on average,
const BATCH_BYTES: usize = 8 << 20;
/// and at most this part of a thread's share of the memory.
const BATCH_PART: usize = 32;
/// Rows are held twice while they are sorted.
const SORT_FACTOR: usize = 2;
/// What rows are looked up by has about so many bytes for each row.
const TABLE_ROW_BYTES: usize = 32;
/// Rows that are put together cannot have more bytes: offsets of texts are numbers of 32 bits.
const MAX_BYTES: usize = 1 << 30;

/// Reads the left side, and the right one where the left one is not small.
pub(super) struct Prepare {
    pub(super) shape: Arc<Shape>,
    pub(super) left: Arc<dyn ExecutionPlan>,
    pub(super) right: Arc<dyn ExecutionPlan>,
    pub(super) sides: [StageMetrics; 2],
    pub(super) metrics: ExecutionPlanMetricsSet,
    pub(super) context: Arc<TaskContext>,
}

/// What there is to do once the left side is there.
#[derive(Debug)]
pub(super) struct Work {
    shape: Arc<Shape>,
    rows: Rows,
    /// Units that have not ended.
    open: AtomicUsize,
    sides: [StageMetrics; 2],
    looked_at: Count,
    time: Time,
    context: Arc<TaskContext>,
}

#[derive(Debug)]
enum Rows {
    /// The left side is in memory. A unit is a partition of the right side.
    Streams { build: Arc<Build>, right: Arc<dyn ExecutionPlan> },
    /// Both sides were written. A unit is a part of the left side, with all of the right one.
    Parts { parts: Vec<Vec<BlockHandle>>, right: Arc<Right> },
}

/// A right side that was written.
#[derive(Debug)]
struct Right {
    blocks: Vec<BlockHandle>,
    rows: usize,
    /// Rows that have a match in any part of the left side, where it matters.
    matched: Option<Marks>,
}

impl Right {
    /// Its rows, always in the same order.
    fn stream(self: &Arc<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        stream::iter(self.blocks.clone()).flat_map(block_batches).boxed()
    }
}

impl Prepare {
    pub(super) async fn work(self) -> Result<Work> {
        let threads = self.context.session_config().target_partitions();
        let left = self.blocks_of(&self.left, 0).await?;
        let bytes = |blocks: &[BlockHandle]| -> usize { blocks.iter().map(build_bytes).sum() };
        let small = build_memory(&self.context)?.min(MAX_BYTES);
        let (rows, units) = if bytes(&left) <= small && num_rows(&left) <= MAX_ROWS {
            let build = Arc::new(self.shape.build(&left, &self.sides[0], &self.context).await?);
            drop(left);
            let units = self.right.output_partitioning().partition_count();
            (Rows::Streams { build, right: self.right }, units)
        } else {
            let blocks = self.blocks_of(&self.right, 1).await?;
            let rows = num_rows(&blocks);
            let matched = self.shape.marks_right().then(|| Marks::new(rows));
            let target = (build_memory(&self.context)? / threads).clamp(MIN_BUILD_BYTES, MAX_BYTES);
            let parts = parts(left, target);
            MetricBuilder::new(&self.metrics).global_counter("parts").add(parts.len());
            let units = parts.len();
            (Rows::Parts { parts, right: Arc::new(Right { blocks, rows, matched }) }, units)
        };
        let looked_at = MetricBuilder::new(&self.metrics).global_counter("pairs_looked_at");
        let time = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        let (shape, sides, context) = (self.shape, self.sides, self.context);
        Ok(Work { shape, rows, open: AtomicUsize::new(units), sides, looked_at, time, context })
    }

    async fn blocks_of(&self, side: &Arc<dyn ExecutionPlan>, number: usize) -> Result<Vec<BlockHandle>> {
        let owner = self.sides[number].owner();
        let blocks = collect_blocks(side, &self.context, NextUse::AfterInput, owner).await?;
        Ok(blocks.into_iter().map(|block| block.handle).collect())
    }
}

/// What the rows of a block take when they are looked up.
fn build_bytes(block: &BlockHandle) -> usize {
    let block = block.metadata();
    block.size_bytes + TABLE_ROW_BYTES * block.num_rows
}

fn num_rows(blocks: &[BlockHandle]) -> usize {
    blocks.iter().map(|block| block.metadata().num_rows).sum()
}

/// Neighbouring blocks that have about `target` bytes together.
fn parts(blocks: Vec<BlockHandle>, target: usize) -> Vec<Vec<BlockHandle>> {
    let mut parts: Vec<Vec<BlockHandle>> = Vec::new();
    let (mut bytes, mut rows) = (0, 0);
    for block in blocks {
        let (more_bytes, more_rows) = (build_bytes(&block), block.metadata().num_rows);
        match parts.last_mut() {
            Some(part) if bytes + more_bytes <= target && rows + more_rows <= MAX_ROWS => part.push(block),
            _ => {
                parts.push(vec![block]);
                (bytes, rows) = (0, 0);
            }
        }
        bytes += more_bytes;
        rows += more_rows;
    }
    parts
}

impl Shape {
    /// The rows of some blocks of the left side, to be looked up.
    async fn build(&self, blocks: &[BlockHandle], stage: &StageMetrics, context: &TaskContext) -> Result<Build> {
        let store = BlockStore::of_task(context)?;
        let bytes = blocks.iter().map(build_bytes).sum::<usize>();
        let reserved = store.working_set(stage.owner(), SORT_FACTOR * bytes)?;
        let batches: Vec<_> = stream::iter(blocks.to_vec()).flat_map(block_batches).try_collect().await?;
        let build = Build::new(&self.left, batches, self.bounds.as_ref(), self.marks_left(), reserved)?;
        check_rows(|| "LoopJoinExec: JoinLeft".to_owned(), num_rows(blocks), build.rows.num_rows())?;
        Ok(build)
    }
}

impl Work {
    /// The rows of unit number `index`, if there is one.
    pub(super) fn run(self: &Arc<Self>, index: usize) -> Result<Option<BoxStream<'static, Result<RecordBatch>>>> {
        let work = Arc::clone(self);
        Ok(match &self.rows {
            Rows::Streams { build, right } => {
                if index >= right.output_partitioning().partition_count() {
                    return Ok(None);
                }
                if build.rows.num_rows() == 0 && self.shape.needs_left() {
                    return Ok(Some(stream::empty().boxed()));
                }
                let right = right.execute(index, Arc::clone(&self.context))?;
                let matches = self.matches(build, right.boxed(), None)?;
                let rest = lazy(async move {
                    let Rows::Streams { build, .. } = &work.rows else { return Ok(stream::empty().boxed()) };
                    Ok(if work.is_last() { work.left_rows(Arc::clone(build)) } else { stream::empty().boxed() })
                });
                Some(matches.chain(rest).boxed())
            }
            Rows::Parts { parts, .. } => (index < parts.len()).then(|| lazy(work.part(index))),
        })
    }

    /// Looks up all of the right side in one part of the left side.
    async fn part(self: Arc<Self>, index: usize) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let Rows::Parts { parts, right } = &self.rows else { return Ok(stream::empty().boxed()) };
        let build = Arc::new(self.shape.build(&parts[index], &self.sides[0], &self.context).await?);
        let matches = self.matches(&build, right.stream(), Some(Arc::clone(right)))?;
        let work = Arc::clone(&self);
        let rest = lazy(async move {
            let left = work.left_rows(build);
            let right = match &work.rows {
                Rows::Parts { right, .. } if work.is_last() => work.right_rows(right),
                _ => stream::empty().boxed(),
            };
            Ok(left.chain(right).boxed())
        });
        Ok(matches.chain(rest).boxed())
    }

    /// Whether this was the last unit to look at the right side.
    fn is_last(&self) -> bool {
        self.open.fetch_sub(1, AcqRel) == 1
    }

    /// The matches of `rows` of the right side. Of a side that was `written` all of them are looked up in each part.
    fn matches(
        &self,
        build: &Arc<Build>,
        rows: BoxStream<'static, Result<RecordBatch>>,
        written: Option<Arc<Right>>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let pairs_at_once = self.pairs_at_once(build)?;
        let given = match self.shape.schema.fields().is_empty() {
            true => None,
            false => {
                let given = BatchCoalescer::new(Arc::clone(&self.shape.schema), pairs_at_once);
                Some(given.with_biggest_coalesce_batch_size(Some(pairs_at_once / 2)))
            }
        };
        let prober = Prober::new(Arc::clone(&self.shape), Arc::clone(build), pairs_at_once, self.looked_at.clone());
        let time = self.time.clone();
        let state = Matches { prober, rows, written, probe: None, seen: 0, given, time, ended: false };
        let matches = stream::try_unfold(state, |mut state| async move {
            let next: Result<_> = state.next().await;
            Ok(next?.map(|batch| (batch, state)))
        });
        Ok(matches.boxed())
    }

    /// Rows of a batch that is given.
    fn pairs_at_once(&self, build: &Build) -> Result<usize> {
        let threads = self.context.session_config().target_partitions().max(1);
        let bytes = BATCH_BYTES.min(stage_memory(&self.context)? / (BATCH_PART * threads));
        let left = build.rows.get_array_memory_size() / build.rows.num_rows().max(1);
        let rows = self.context.session_config().batch_size();
        Ok((bytes / (left + self.shape.right_row_bytes).max(1)).clamp(1, rows.max(1)))
    }

    /// What there is to give of a part of the left side behind its matches.
    fn left_rows(self: &Arc<Self>, build: Arc<Build>) -> BoxStream<'static, Result<RecordBatch>> {
        let shape = Arc::clone(&self.shape);
        let rows = build.rows.num_rows();
        let at_once = self.pairs_at_once(&build).unwrap_or(1);
        let starts = stream::iter((0..rows).step_by(at_once));
        let given = starts.map(move |from| shape.left_rows(&build, from, rows.min(from + at_once)));
        given.try_filter_map(|batch| async { Ok(batch) }).boxed()
    }

    /// What there is to give of the right side behind all matches.
    fn right_rows(&self, right: &Arc<Right>) -> BoxStream<'static, Result<RecordBatch>> {
        if right.matched.is_none() {
            return stream::empty().boxed();
        }
        let (shape, right, mut first) = (Arc::clone(&self.shape), Arc::clone(right), 0);
        let rows = right.stream();
        let given = rows.map(move |batch| {
            let batch = batch?;
            let Some(marks) = &right.matched else { return Ok(None) };
            let given = shape.right_rows(&batch, |row| marks.get(first + row));
            first += batch.num_rows();
            given
        });
        given.try_filter_map(|batch| async { Ok(batch) }).boxed()
    }
}

/// The rows of a stream that is made when it is asked for them.
fn lazy(
    rows: impl Future<Output = Result<BoxStream<'static, Result<RecordBatch>>>> + Send + 'static,
) -> BoxStream<'static, Result<RecordBatch>> {
    stream::once(rows).try_flatten().boxed()
}

/// Matches that are being looked up.
struct Matches {
    prober: Prober,
    rows: BoxStream<'static, Result<RecordBatch>>,
    written: Option<Arc<Right>>,
    probe: Option<Probe>,
    /// Rows of the right side that were looked up.
    seen: usize,
    /// Puts small batches together. Rows without columns stay as they are.
    given: Option<BatchCoalescer>,
    time: Time,
    ended: bool,
}

impl Matches {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.given.as_mut().and_then(BatchCoalescer::next_completed_batch) {
                return Ok(Some(batch));
            }
            let (given, is_done) = match &mut self.probe {
                Some(probe) if !probe.is_done() => {
                    // Many pairs may give no row.
                    tokio::task::consume_budget().await;
                    let _time = self.time.timer();
                    (self.prober.next(probe)?, false)
                }
                Some(probe) => {
                    let marks = self.written.as_ref().and_then(|right| right.matched.as_ref());
                    let given = self.prober.end(probe, marks.map(|marks| (marks, self.seen)))?;
                    self.seen += probe.num_rows();
                    (given, true)
                }
                None => match self.rows.try_next().await? {
                    Some(rows) => {
                        let _time = self.time.timer();
                        self.probe = Some(self.prober.look_up(rows)?);
                        (None, false)
                    }
                    None if self.ended => return Ok(None),
                    None => {
                        self.end()?;
                        (None, false)
                    }
                },
            };
            if is_done {
                self.probe = None;
            }
            match (given, &mut self.given) {
                (Some(batch), None) => return Ok(Some(batch)),
                (Some(batch), Some(given)) => given.push_batch(batch)?,
                (None, _) => {}
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        self.ended = true;
        // Polled again behind its end it would be an error.
        self.rows = stream::empty().boxed();
        if let Some(right) = &self.written {
            check_rows(|| "LoopJoinExec: JoinRight".to_owned(), right.rows, self.seen)?;
        }
        match &mut self.given {
            Some(given) => given.finish_buffered_batch().map_err(DataFusionError::from),
            None => Ok(()),
        }
    }
}
