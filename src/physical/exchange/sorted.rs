//! A stable sort of all rows, out of core and in parallel.
//!
//! The map side sorts runs of each task and cuts them into pieces, of which the first key stays in memory. When all
//! runs are there, these keys say where to cut: a bucket is a range of (key, run, row), so that it has about as many
//! bytes as it should even where all keys are equal. The reduce side merges the parts of the runs in each bucket,
//! several buckets at once, and gives them in order.

use std::cmp::Ordering;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::arrow::row::Rows;
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlanProperties;
use futures::{StreamExt, TryStreamExt, stream};

use super::buckets::{Batches, MapInput};
use super::runs::Piece;
use super::sort_keys::{First, Order, RowPlace, compare, places};
use crate::block::{Block, TaskId, sliced_bytes};
use crate::config::BlockyardOptions;
use crate::physical::memory::stage_memory;
use crate::physical::tasks::check_rows;
use crate::physical::tasks::task_stream;
use crate::runtime::{Drivers, on_io_thread};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, WorkingSet};

/// A task's rows are sorted in runs of at most about this many bytes.
const RUN_BYTES: usize = 64 << 20;
/// A run is cut into pieces of so many bytes at least, and at most so many of them.
const PIECE_BYTES: usize = 64 << 10;
const MAX_PIECES: usize = 512;
/// Of the keys of these pieces, which stay in memory, so much is kept at least, and more where they are at most this
/// part of the rows. Keys that begin with the same bytes are not told apart when buckets are cut.
const MIN_KEY_BYTES: usize = 512;
const KEYS_PART: usize = 64;
/// What sorting a run, or merging a bucket, takes: rows as they come, their keys, and rows in order.
pub(super) const COPIES: usize = 3;
/// A bucket has at least this many bytes.
const MIN_BUCKET_BYTES: usize = 1 << 20;

/// How rows are sorted, and where to.
#[derive(Debug, Clone)]
pub(super) struct Sorting {
    pub(super) order: Order,
    /// Whether the last column has numbers of rows, by which they are called in place of their places in a run.
    numbered: bool,
    /// The most bytes of a run: what is sorted at once.
    run_bytes: usize,
    /// The most bytes of a bucket: what is merged at once.
    bucket_bytes: usize,
    batch_rows: usize,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
}

impl Sorting {
    /// Of rows with columns of `schema` in a query of which `threads` sort at the same time, for an operator.
    pub(super) fn new(
        by: Vec<PhysicalSortExpr>,
        schema: SchemaRef,
        context: &TaskContext,
        threads: usize,
        owner: &Arc<Owner>,
    ) -> Result<Self> {
        let (store, memory) = (BlockStore::of_task(context)?, stage_memory(context)?);
        let run_bytes = RUN_BYTES.min(memory / (8 * threads)).max(1);
        let threads = context.session_config().target_partitions();
        let block_bytes = BlockyardOptions::from_task(context).block_bytes(threads);
        let bucket_bytes = block_bytes.min(memory / (8 * threads)).max(MIN_BUCKET_BYTES);
        let batch_rows = context.session_config().batch_size().max(1);
        let (order, owner) = (Order { by, schema }, Arc::clone(owner));
        Ok(Self { order, numbered: false, run_bytes, bucket_bytes, batch_rows, store, owner })
    }

    fn working_set(&self) -> Result<WorkingSet> {
        self.store.working_set(&self.owner, COPIES * self.run_bytes)
    }

    /// A run of rows of a task, put into the store.
    fn run(&self, task: TaskId, batches: Vec<RecordBatch>) -> Result<SortedRun> {
        let (block, firsts) = self.sorted_run(batches)?;
        let handle = self.store.put_pieces(block, NextUse::AfterInput, &self.owner)?;
        Ok(SortedRun { task, handle, firsts })
    }

    /// Batches in order, as one block whose batches are slices of one.
    fn sorted_run(&self, batches: Vec<RecordBatch>) -> Result<(Block, Vec<First>)> {
        let bytes: usize = batches.iter().map(sliced_bytes).sum();
        let keys = batches.iter().map(|batch| self.order.keys(batch)).collect::<Result<Vec<_>>>()?;
        let places = places(&keys);
        let together = interleave_record_batch(&batches.iter().collect::<Vec<_>>(), &places)?;
        let pieces = (bytes / PIECE_BYTES).clamp(1, MAX_PIECES);
        let size = together.num_rows().div_ceil(pieces).max(1);
        let starts = (0..together.num_rows()).step_by(size);
        let key_bytes = (bytes / KEYS_PART / pieces).max(MIN_KEY_BYTES);
        let first = |start: usize| {
            let (batch, at) = places[start];
            let row = if self.numbered { self.number_of(&together, start) } else { start };
            First::new(keys[batch].row(at).as_ref(), row, start, key_bytes)
        };
        let firsts = starts.clone().map(first).collect();
        let slices = starts.map(|start| together.slice(start, size.min(together.num_rows() - start))).collect();
        Ok((Block::new(together.schema(), slices), firsts))
    }

    /// The same of rows whose last column has their numbers.
    pub(super) fn of_numbered(self) -> Self {
        Self { numbered: true, ..self }
    }

    /// The number by which a row of a batch is called, where it is numbered.
    pub(super) fn number_of(&self, batch: &RecordBatch, row: usize) -> usize {
        batch.column(batch.num_columns() - 1).as_primitive::<UInt64Type>().value(row) as usize
    }

    /// The rows of a task, sorted in runs.
    pub(super) async fn runs(&self, id: &TaskId, rows: Batches) -> Result<Vec<SortedRun>> {
        let _reserved = self.working_set()?;
        let (mut rows, mut runs, mut taken) = (Unsorted::new(rows, self.run_bytes), Vec::new(), 0);
        loop {
            let batches = rows.next_run().await?;
            if !batches.is_empty() {
                taken += num_rows(&batches);
                runs.push(self.run(id.child(runs.len()), batches)?);
            }
            if rows.have_ended() {
                break;
            }
        }
        let given = runs.iter().map(|run| run.handle.metadata().num_rows).sum();
        check_rows(|| format!("sorting the rows of task {id}"), taken, given)?;
        Ok(runs)
    }

    /// All rows of a task in order: at once if they are one run, and merged from runs otherwise.
    pub(super) async fn sorted(self, task: TaskId, rows: Batches) -> Result<Batches> {
        let (mut rows, mut runs, mut taken) = (Unsorted::new(rows, self.run_bytes), Vec::new(), 0);
        // Most tasks have far less than a run may.
        let mut reserved = self.store.working_set(&self.owner, 0)?;
        loop {
            let batches = rows.next_run().await?;
            reserved.resize(COPIES * batches.iter().map(sliced_bytes).sum::<usize>())?;
            if runs.is_empty() && rows.have_ended() {
                let keys = batches.iter().map(|batch| self.order.keys(batch)).collect::<Result<Vec<_>>>()?;
                return Ok(stream::iter(self.merged(batches, &keys, reserved).batches()).boxed());
            }
            taken += num_rows(&batches);
            runs.push(self.run(task.child(runs.len()), batches)?);
            if rows.have_ended() {
                break;
            }
        }
        drop(reserved);
        let sorted = Arc::new(SortedRows::new(self, runs, 1, None)?);
        check_rows(|| format!("sorting the rows of task {task}"), taken, sorted.num_rows())?;
        Ok(stream::iter(0..sorted.num_tasks()).flat_map(move |bucket| Arc::clone(&sorted).rows_of(bucket)).boxed())
    }

    /// Batches with their keys, which become one in order.
    pub(super) fn merged(&self, batches: Vec<RecordBatch>, keys: &[Rows], reserved: WorkingSet) -> Merged {
        let (schema, places) = (Arc::clone(&self.order.schema), places(keys));
        Merged { schema, batch_rows: self.batch_rows, batches, places, _reserved: reserved }
    }
}

/// Rows as they come, so many at once as are sorted at once.
struct Unsorted {
    rows: Batches,
    /// What did not fit any more; nothing behind the last.
    next: Option<RecordBatch>,
    run_bytes: usize,
}

impl Unsorted {
    fn new(rows: Batches, run_bytes: usize) -> Self {
        Self { rows, next: None, run_bytes }
    }

    /// The rows of the next run; none at the end.
    async fn next_run(&mut self) -> Result<Vec<RecordBatch>> {
        let mut run: Vec<_> = self.next.take().into_iter().collect();
        let mut bytes: usize = run.iter().map(sliced_bytes).sum();
        while let Some(batch) = self.rows.try_next().await? {
            let more = sliced_bytes(&batch);
            if !run.is_empty() && bytes + more > self.run_bytes {
                self.next = Some(batch);
                break;
            }
            bytes += more;
            run.extend((batch.num_rows() > 0).then_some(batch));
        }
        Ok(run)
    }

    /// Whether the run that was asked for was the last.
    fn have_ended(&self) -> bool {
        self.next.is_none()
    }
}

/// Rows of one task in order, as one block of pieces.
#[derive(Debug)]
pub(super) struct SortedRun {
    task: TaskId,
    pub(super) handle: BlockHandle,
    pub(super) firsts: Vec<First>,
}

impl SortedRun {
    /// The pieces in which rows between two places may be, if there are any, where the run is called `number`.
    pub(super) fn pieces_between(
        &self,
        number: usize,
        from: Option<&RowPlace>,
        to: Option<&RowPlace>,
    ) -> Option<RangeInclusive<usize>> {
        // The piece in which a place is: the last that begins before it, or may do so.
        let piece_of = |place: &RowPlace, unknown: bool| {
            let before = |first: &First| first.is_before(number, place).unwrap_or(unknown);
            self.firsts.partition_point(before).saturating_sub(1)
        };
        let mut first = from.map_or(0, |place| piece_of(place, false));
        let last = to.map_or(self.firsts.len().saturating_sub(1), |place| piece_of(place, true));
        if let (Some(place), [piece, next, ..]) = (from, &self.firsts[first..]) {
            // A piece of one row that is before the place has none behind it. It may be large.
            let is_before = piece.is_before(number, place) == Some(true);
            first += usize::from(is_before && next.start == piece.start + 1);
        }
        (first <= last && !self.firsts.is_empty()).then_some(first..=last)
    }
}

/// All rows in runs, and where the buckets are cut.
#[derive(Debug)]
pub(super) struct SortedRows {
    runs: Vec<SortedRun>,
    cuts: Vec<RowPlace>,
    /// The numbers of the buckets of each output task.
    tasks: Vec<Range<usize>>,
    sorting: Sorting,
}

/// The map side: sorts the rows of `input`'s tasks in runs.
pub(super) async fn map_side(
    input: &MapInput,
    by: &LexOrdering,
    boundaries: Option<&[ScalarValue]>,
) -> Result<SortedRows> {
    let MapInput { plan: input, context, stage, .. } = input;
    let partitions = input.output_partitioning().partition_count();
    let sorting = Sorting::new(by.iter().cloned().collect(), input.schema(), context, partitions, stage.owner())?;
    let mut drivers = Vec::new();
    for partition in 0..partitions {
        let mut tasks = task_stream(input, partition, Arc::clone(context))?;
        let (stage, sorting) = (stage.clone(), sorting.clone());
        drivers.push(async move {
            let mut runs = Vec::new();
            while let Some(task) = tasks.try_next().await? {
                let task = stage.measure(task);
                runs.extend(sorting.runs(&task.id, task.batches).await?);
            }
            Ok(runs)
        });
    }
    let mut runs: Vec<SortedRun> = Drivers::start(drivers).finish().await?.into_iter().flatten().collect();
    runs.sort_by(|a, b| a.task.cmp(&b.task));
    SortedRows::new(sorting, runs, context.session_config().target_partitions(), boundaries)
}

fn num_rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// Where to cut so that buckets have about `target` bytes each.
fn cuts(runs: &[SortedRun], target: usize) -> Vec<RowPlace> {
    let mut pieces = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        let bytes = run.handle.metadata().size_bytes / run.firsts.len().max(1);
        pieces.extend(run.firsts.iter().map(|first| (&first.key, number, first.row, bytes)));
    }
    pieces.sort_unstable();
    let (mut cuts, mut bytes) = (Vec::new(), 0);
    for (key, run, row, more) in pieces {
        if bytes > 0 && bytes + more > target {
            cuts.push(RowPlace { key: key.clone(), run, row });
            bytes = 0;
        }
        bytes += more;
    }
    cuts
}

/// All cuts, and the numbers of the buckets of each output task: one, or those between two boundaries.
fn tasks(mut cuts: Vec<RowPlace>, boundaries: Option<Vec<RowPlace>>) -> (Vec<RowPlace>, Vec<Range<usize>>) {
    let Some(boundaries) = boundaries else {
        let tasks = (0..=cuts.len()).map(|bucket| bucket..bucket + 1).collect();
        return (cuts, tasks);
    };
    cuts.extend(boundaries.iter().cloned());
    cuts.sort_unstable();
    cuts.dedup();
    let starts = boundaries.iter().map(|place| cuts.partition_point(|cut| cut < place) + 1);
    let edges: Vec<usize> = [0].into_iter().chain(starts).chain([cuts.len() + 1]).collect();
    (cuts, edges.windows(2).map(|edge| edge[0]..edge[1]).collect())
}

impl SortedRows {
    /// Runs in the order of their tasks, cut so that each of `threads` has a bucket at least, unless there is next to
    /// nothing.
    fn new(sorting: Sorting, runs: Vec<SortedRun>, threads: usize, boundaries: Option<&[ScalarValue]>) -> Result<Self> {
        let total: usize = runs.iter().map(|run| run.handle.metadata().size_bytes).sum();
        let bucket_bytes = sorting.bucket_bytes.min((total / threads).max(MIN_BUCKET_BYTES));
        let (cuts, tasks) = tasks(cuts(&runs, bucket_bytes), sorting.order.boundaries(boundaries)?);
        let sorting = Sorting { bucket_bytes, ..sorting };
        Ok(Self { runs, cuts, tasks, sorting })
    }

    /// Rows of all tasks.
    pub(super) fn num_rows(&self) -> usize {
        self.runs.iter().map(|run| run.handle.metadata().num_rows).sum()
    }

    /// Number of output tasks, at least one.
    pub(super) fn num_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The rows of an output task in order.
    pub(super) fn rows_of(self: Arc<Self>, task: usize) -> Batches {
        stream::iter(self.tasks[task].clone())
            .then(move |bucket| {
                let sorted = Arc::clone(&self);
                on_io_thread(move || sorted.merge(bucket))
            })
            .map_ok(|merged| stream::iter(merged.batches()))
            .try_flatten()
            .boxed()
    }

    fn merge(&self, bucket: usize) -> Result<Merged> {
        let reserved = self.sorting.store.working_set(&self.sorting.owner, COPIES * self.sorting.bucket_bytes)?;
        let (from, to) = (bucket.checked_sub(1).map(|before| &self.cuts[before]), self.cuts.get(bucket));
        let (mut batches, mut keys) = (Vec::new(), Vec::new());
        for number in 0..self.runs.len() {
            if let Some((batch, of_batch)) = self.part(number, from, to)? {
                batches.push(batch);
                keys.push(of_batch);
            }
        }
        Ok(self.sorting.merged(batches, &keys, reserved))
    }

    /// The rows of a run between two places, with their keys.
    fn part(
        &self,
        number: usize,
        from: Option<&RowPlace>,
        to: Option<&RowPlace>,
    ) -> Result<Option<(RecordBatch, Rows)>> {
        let run = &self.runs[number];
        let Some(pieces) = run.pieces_between(number, from, to) else { return Ok(None) };
        let begin = run.firsts[*pieces.start()].start;
        let mut group = Piece::default();
        for piece in run.handle.batches(pieces) {
            group.push(piece?);
        }
        if group.pieces.is_empty() {
            return Ok(None);
        }
        let rows = group.copied()?;
        let keys = self.sorting.order.keys(&rows)?;
        let row_of = |place: &RowPlace| {
            let (mut low, mut high) = (0, keys.num_rows());
            while low < high {
                let middle = low + (high - low) / 2;
                match compare(keys.row(middle).as_ref(), number, begin + middle, place) {
                    Ordering::Less => low = middle + 1,
                    _ => high = middle,
                }
            }
            low
        };
        let (start, end) = (from.map_or(0, row_of), to.map_or(keys.num_rows(), row_of));
        if start >= end {
            return Ok(None);
        }
        if end - start == rows.num_rows() {
            return Ok(Some((rows, keys)));
        }
        let rows = rows.slice(start, end - start);
        let keys = self.sorting.order.keys(&rows)?;
        Ok(Some((rows, keys)))
    }
}

/// A bucket that was merged but not yet copied.
pub(super) struct Merged {
    schema: SchemaRef,
    batch_rows: usize,
    batches: Vec<RecordBatch>,
    places: Vec<(usize, usize)>,
    _reserved: WorkingSet,
}

impl Merged {
    /// The rows in order, copied batch by batch.
    pub(super) fn batches(self) -> impl Iterator<Item = Result<RecordBatch>> {
        (0..self.places.len()).step_by(self.batch_rows).map(move |start| self.batch(start))
    }

    fn batch(&self, start: usize) -> Result<RecordBatch> {
        let places = &self.places[start..(start + self.batch_rows).min(self.places.len())];
        let batch = interleave_record_batch(&self.batches.iter().collect::<Vec<_>>(), places)?;
        Ok(batch.with_schema(Arc::clone(&self.schema))?)
    }
}
