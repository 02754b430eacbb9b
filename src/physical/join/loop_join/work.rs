//! What the streams of a loop join do.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::build::{Build, MAX_ROWS, Marks};
use super::probe::{Probe, Prober, Shape};
use super::sizes::Sizes;
use crate::physical::StageMetrics;
use crate::physical::exchange::collect_blocks;
use crate::physical::join::side::{LEFT, RIGHT, build_memory};
use crate::physical::memory::stage_memory;
use crate::physical::tasks::{Output, RowBalance, block_batches, stream_of};
use crate::runtime::on_io_thread;
use crate::store::{BlockHandle, BlockStore, NextUse};

/// A batch that is given has at most so many bytes, by what rows have on average,
const BATCH_BYTES: usize = 8 << 20;
/// and at most this part of a thread's share of the memory.
const BATCH_PART: usize = 32;
/// Rows are held twice while they are sorted.
const SORT_FACTOR: usize = 2;
/// What rows are looked up by has about so many bytes for each row.
const LOOKUP_ROW_BYTES: usize = 48;
/// A part of the left side that is smaller costs more than it saves.
const MIN_PART_BYTES: usize = 256 << 10;
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
    sides: Sides,
    /// Units that have not ended.
    open: AtomicUsize,
    left: StageMetrics,
    looked_at: Count,
    time: Time,
    context: Arc<TaskContext>,
}

#[derive(Debug)]
enum Sides {
    /// The left side is in memory. A unit is a partition of the right side.
    Streams { build: Arc<Build>, right: Arc<dyn ExecutionPlan> },
    /// Both sides were written. A unit is a part of the left side, which it takes, with all of the right one.
    Parts { parts: Vec<Mutex<Option<Part>>>, right: Arc<Right> },
}

/// Some blocks of the left side.
#[derive(Debug)]
struct Part {
    blocks: Vec<BlockHandle>,
    output: Output,
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
    fn stream(&self, schema: &SchemaRef, context: &TaskContext) -> Result<SendableRecordBatchStream> {
        let balance = RowBalance::new(format!("LoopJoinExec: {RIGHT}"), context);
        balance.take(self.rows);
        let rows = balance.giving(read(schema, self.blocks.clone()));
        balance.all_begun()?;
        Ok(rows)
    }
}

fn read(schema: &SchemaRef, blocks: Vec<BlockHandle>) -> SendableRecordBatchStream {
    stream_of(Arc::clone(schema), stream::iter(blocks).flat_map(block_batches).boxed())
}

impl Prepare {
    pub(super) async fn work(self) -> Result<Work> {
        let blocks = self.blocks_of(&self.left, 0).await?;
        let bytes: usize = blocks.iter().map(|block| self.shape.build_bytes(block)).sum();
        let balance = RowBalance::new(format!("LoopJoinExec: {LEFT}"), &self.context);
        balance.take(num_rows(&blocks));
        let partitions = self.right.output_partitioning().partition_count();
        let time = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        let (sides, units) = if bytes <= build_memory(&self.context)?.min(MAX_BYTES) {
            let part = Part { blocks, output: balance.output() };
            balance.all_begun()?;
            let build = self.shape.build(part, &self.sides[0], &time, &self.context).await?;
            (Sides::Streams { build: Arc::new(build), right: self.right }, partitions)
        } else {
            let right = self.blocks_of(&self.right, 1).await?;
            let rows = num_rows(&right);
            let matched = self.shape.marks_right().then(|| Marks::new(rows));
            let target = (build_memory(&self.context)? / partitions).clamp(MIN_PART_BYTES, MAX_BYTES);
            let parts = self.shape.parts(blocks, target).into_iter();
            let parts: Vec<_> =
                parts.map(|blocks| Mutex::new(Some(Part { blocks, output: balance.output() }))).collect();
            balance.all_begun()?;
            MetricBuilder::new(&self.metrics).global_counter("parts").add(parts.len());
            let units = parts.len();
            (Sides::Parts { parts, right: Arc::new(Right { blocks: right, rows, matched }) }, units)
        };
        let looked_at = MetricBuilder::new(&self.metrics).global_counter("pairs_looked_at");
        let ([left, _], open) = (self.sides, AtomicUsize::new(units));
        Ok(Work { shape: self.shape, sides, open, left, looked_at, time, context: self.context })
    }

    async fn blocks_of(&self, side: &Arc<dyn ExecutionPlan>, number: usize) -> Result<Vec<BlockHandle>> {
        let owner = self.sides[number].owner();
        let blocks = collect_blocks(side, &self.context, NextUse::AfterInput, owner).await?;
        Ok(blocks.into_iter().map(|block| block.handle).collect())
    }
}

fn num_rows(blocks: &[BlockHandle]) -> usize {
    blocks.iter().map(|block| block.metadata().num_rows).sum()
}

impl Shape {
    /// What the rows of a block take when they are looked up.
    fn build_bytes(&self, block: &BlockHandle) -> usize {
        let (block, row_bytes) = (block.metadata(), if self.bounds.is_some() { LOOKUP_ROW_BYTES } else { 0 });
        block.size_bytes + row_bytes * block.num_rows
    }

    /// Neighbouring blocks that have about `target` bytes together.
    fn parts(&self, blocks: Vec<BlockHandle>, target: usize) -> Vec<Vec<BlockHandle>> {
        let mut parts: Vec<Vec<BlockHandle>> = Vec::new();
        let (mut bytes, mut rows) = (0, 0);
        for block in blocks {
            let (more_bytes, more_rows) = (self.build_bytes(&block), block.metadata().num_rows);
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

    /// The rows of a part of the left side, to be looked up.
    async fn build(
        self: &Arc<Self>,
        part: Part,
        stage: &StageMetrics,
        time: &Time,
        context: &TaskContext,
    ) -> Result<Build> {
        let bytes = part.blocks.iter().map(|block| self.build_bytes(block)).sum::<usize>();
        let reserved = BlockStore::of_task(context)?.working_set(stage.owner(), SORT_FACTOR * bytes)?;
        let batches: Vec<_> = part.output.of(read(&self.left, part.blocks)).try_collect().await?;
        let (shape, time) = (Arc::clone(self), time.clone());
        on_io_thread(move || {
            let _time = time.timer();
            Build::new(&shape.left, &batches, shape.bounds.as_ref(), shape.marks_left(), reserved)
        })
        .await
    }
}

impl Work {
    /// The rows of unit number `index`, if there is one.
    pub(super) fn run(self: &Arc<Self>, index: usize) -> Result<Option<BoxStream<'static, Result<RecordBatch>>>> {
        let work = Arc::clone(self);
        Ok(match &self.sides {
            Sides::Streams { build, right } => {
                if index >= right.output_partitioning().partition_count() {
                    return Ok(None);
                }
                // Others may wait for it to begin.
                let right = right.execute(index, Arc::clone(&self.context))?;
                if build.rows.num_rows() == 0 && self.shape.needs_left() {
                    return Ok(Some(stream::empty().boxed()));
                }
                let matches = self.matches(build, right, None)?;
                let build = Arc::clone(build);
                let rest =
                    lazy(
                        async move { if work.is_last() { work.left_rows(build) } else { Ok(stream::empty().boxed()) } },
                    );
                Some(matches.chain(rest).boxed())
            }
            Sides::Parts { parts, .. } => (index < parts.len()).then(|| lazy(work.part(index))),
        })
    }

    /// Looks up all of the right side in one part of the left side.
    async fn part(self: Arc<Self>, index: usize) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let Sides::Parts { parts, right } = &self.sides else { return Ok(stream::empty().boxed()) };
        let Some(part) = parts[index].lock().take() else { return internal_err!("a part of a join was taken twice") };
        let build = Arc::new(self.shape.build(part, &self.left, &self.time, &self.context).await?);
        let rows = right.stream(&self.shape.right, &self.context)?;
        let matches = self.matches(&build, rows, Some(Arc::clone(right)))?;
        let work = Arc::clone(&self);
        let rest = lazy(async move {
            let left = work.left_rows(build)?;
            let right = match &work.sides {
                Sides::Parts { right, .. } if work.is_last() => work.right_rows(right)?,
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
        rows: SendableRecordBatchStream,
        written: Option<Arc<Right>>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let (sizes, shape) = (self.sizes(build)?, Arc::clone(&self.shape));
        let given = match shape.schema.fields().is_empty() {
            true => None,
            false => {
                let rows = sizes.max_rows();
                let given = BatchCoalescer::new(Arc::clone(&shape.schema), rows);
                Some(given.with_biggest_coalesce_batch_size(Some(rows / 2)))
            }
        };
        let store = BlockStore::of_task(&self.context)?;
        let reserve = |bytes| store.working_set(self.left.owner(), bytes);
        let prober = Prober::new(shape, Arc::clone(build), sizes, self.looked_at.clone(), reserve)?;
        let (rows, max_rows, time) = (rows.boxed(), sizes.max_rows(), self.time.clone());
        let state = Matches { prober, rows, written, probe: None, seen: 0, given, max_rows, time, ended: false };
        let matches = stream::try_unfold(state, |mut state| async move {
            let next: Result<_> = state.next().await;
            Ok(next?.map(|batch| (batch, state)))
        });
        Ok(matches.boxed())
    }

    /// Rows of batches that are given.
    fn sizes(&self, build: &Build) -> Result<Sizes> {
        let threads = self.context.session_config().target_partitions().max(1);
        let bytes = BATCH_BYTES.min(stage_memory(&self.context)? / (BATCH_PART * threads));
        Ok(Sizes::new(&build.rows, self.context.session_config().batch_size(), bytes))
    }

    /// What there is to give of a part of the left side behind its matches.
    fn left_rows(self: &Arc<Self>, build: Arc<Build>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let shape = Arc::clone(&self.shape);
        let (rows, at_once) = (build.rows.num_rows(), self.sizes(&build)?.rows_of_left());
        let starts = stream::iter((0..rows).step_by(at_once));
        let given = starts.map(move |from| shape.left_rows(&build, from, rows.min(from + at_once)));
        Ok(given.try_filter_map(|batch| async { Ok(batch) }).boxed())
    }

    /// What there is to give of the right side behind all matches.
    fn right_rows(&self, right: &Arc<Right>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        if right.matched.is_none() {
            return Ok(stream::empty().boxed());
        }
        let rows = right.stream(&self.shape.right, &self.context)?;
        let (shape, right, mut first) = (Arc::clone(&self.shape), Arc::clone(right), 0);
        let given = rows.map(move |batch| {
            let batch = batch?;
            let Some(marks) = &right.matched else { return Ok(None) };
            let given = shape.right_rows(&batch, |row| marks.get(first + row));
            first += batch.num_rows();
            given
        });
        Ok(given.try_filter_map(|batch| async { Ok(batch) }).boxed())
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
    max_rows: usize,
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
                        self.probe = Some(self.prober.look_up(rows));
                        (None, false)
                    }
                    None if self.ended => return Ok(None),
                    None => {
                        self.end()?;
                        (None, false)
                    }
                },
            };
            let is_wide = self.probe.as_ref().is_some_and(|probe| probe.is_wide(self.max_rows));
            if is_done {
                self.probe = None;
            }
            match (given, &mut self.given) {
                (Some(batch), _) if is_wide => return Ok(Some(batch)),
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
        match &mut self.given {
            Some(given) => given.finish_buffered_batch().map_err(DataFusionError::from),
            None => Ok(()),
        }
    }
}
