//! The rows of a map side in the store, so that any range of them can be read back.
//!
//! Every row has a 64-bit code: a random number, or a hash of its keys. The map side cuts the rows of each task into
//! runs of some mebibytes, and each run into pieces by the leading bits of the code. A bucket is a range of codes, and
//! reads the pieces that overlap it: how many buckets there are is decided when all bytes are known.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::cuts::equal_range;
use super::distributed::Extent;
use super::router::{KeyEncoding, MAX_PIECE_BITS, Router, RunPieces, inside, max_piece_bits, with_code};
use super::seen_keys::{KeyNotes, SeenKeys, Wanted};
use crate::block::{TaskId, compact_views, copied, sliced_bytes};
use crate::physical::memory::stage_memory;
use crate::physical::tasks::StageMetrics;
use crate::physical::tasks::check_rows;
use crate::physical::tasks::{Task, task_stream};
use crate::runtime::{Drivers, begun_on_io_thread};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// A task's rows are routed in runs of about this many bytes.
const RUN_BYTES: usize = 32 << 20;
/// A slice of a run with so many rows is a batch of its own, where runs may stay in memory.
const MIN_SLICE_ROWS: usize = 1024;
/// Runs that are less than this part of the memory may stay in it.
const PLENTY_PART: usize = 4;

/// The rows of one run, as one block whose batch i holds the keys with leading bits i, keys in the last column.
#[derive(Debug)]
pub(super) struct RoutedRun {
    task: TaskId,
    pub(super) pieces: RunPieces,
    pub(super) handle: BlockHandle,
}

/// All runs of a map side.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(super) runs: Vec<RoutedRun>,
    pub(super) schema: SchemaRef,
    /// Bytes of all rows, with their codes.
    pub(super) bytes: usize,
    pub(super) rows: usize,
    /// Whether there is so much memory that slices of runs may keep all of them in it.
    pub(super) plenty: bool,
    /// Bytes by the leading bits of the codes.
    pub(super) bins: Vec<usize>,
    /// Rows that were not wanted.
    pub(super) left_out: usize,
    /// The sum of the codes of all rows.
    pub(super) sum_of_codes: u64,
    /// The keys, if they were noted.
    pub(super) seen: Option<Arc<SeenKeys>>,
    /// Rows of an output batch.
    pub(super) batch_rows: usize,
    pub(super) store: Arc<BlockStore>,
    pub(super) owner: Arc<Owner>,
}

/// What was routed of some tasks.
struct Routed {
    runs: Vec<RoutedRun>,
    /// Bytes by the leading bits of the codes.
    bins: Vec<usize>,
    notes: Option<KeyNotes>,
    /// Rows that were not wanted.
    left_out: usize,
    sum_of_codes: u64,
}

impl Routed {
    fn new(notes: Option<KeyNotes>) -> Self {
        Self { runs: Vec::new(), bins: vec![0; 1 << MAX_PIECE_BITS], notes, left_out: 0, sum_of_codes: 0 }
    }

    /// Routes the rows of a task, in runs of about `run_bytes`.
    async fn add_task(
        &mut self,
        mut task: Task,
        mut router: Router,
        run_bytes: usize,
        store: &Arc<BlockStore>,
        owner: &Arc<Owner>,
    ) -> Result<()> {
        let (mut taken, mut given, first) = (0, 0, self.runs.len());
        loop {
            let batch = task.batches.try_next().await?;
            let ended = batch.is_none();
            let bytes = batch.as_ref().map_or(0, sliced_bytes);
            if router.rows > 0 && (ended || router.bytes + bytes > run_bytes) {
                let (pieces, block) = router.route(&mut self.bins)?;
                let handle = store.put_pieces(block, NextUse::AfterInput, owner)?;
                given += handle.metadata().num_rows;
                self.runs.push(RoutedRun { task: task.id.child(self.runs.len() - first), pieces, handle });
            }
            match batch {
                Some(batch) => {
                    taken += batch.num_rows();
                    router.push(batch, bytes, self.notes.as_mut())?;
                }
                None => break,
            }
        }
        self.left_out += router.dropped;
        self.sum_of_codes = self.sum_of_codes.wrapping_add(router.sum_of_codes);
        check_rows(|| format!("routing the rows of task {}", task.id), taken, given + router.dropped)
    }

    fn merge(&mut self, others: Self) -> Result<()> {
        self.runs.extend(others.runs);
        self.bins.iter_mut().zip(others.bins).for_each(|(bin, more)| *bin += more);
        self.left_out += others.left_out;
        self.sum_of_codes = self.sum_of_codes.wrapping_add(others.sum_of_codes);
        match (&mut self.notes, others.notes) {
            (Some(notes), Some(others)) => notes.merge(others)?,
            (notes @ None, others) => *notes = others,
            (Some(_), None) => {}
        }
        Ok(())
    }
}

impl Runs {
    /// Runs the tasks of `input` and routes their rows that are `wanted`, for `num_buckets` ranges of codes of equal
    /// width where that is known.
    pub(crate) async fn collect(
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        stage: &StageMetrics,
        coding: KeyEncoding,
        num_buckets: Option<usize>,
        wanted: Wanted,
    ) -> Result<Self> {
        let store = BlockStore::of_task(context)?;
        let max_bits = num_buckets.map_or(MAX_PIECE_BITS, max_piece_bits);
        let partitions = input.output_partitioning().partition_count();
        let run_bytes = RUN_BYTES.min(stage_memory(context)? / (8 * partitions)).max(1);
        let key_types = coding.types(&input.schema())?;
        let mut drivers = Vec::new();
        for partition in 0..partitions {
            let mut tasks = task_stream(input, partition, Arc::clone(context))?;
            let (store, stage, schema, coding) = (Arc::clone(&store), stage.clone(), input.schema(), coding.clone());
            let notes = wanted.notes.then(|| KeyNotes::new(stage_memory(context)?, &key_types)).transpose()?;
            let wanted = wanted.clone();
            drivers.push(async move {
                let mut routed = Routed::new(notes);
                let _noted = store.working_set(stage.owner(), routed.notes.as_ref().map_or(0, KeyNotes::bytes))?;
                while let Some(task) = tasks.try_next().await? {
                    let task = stage.measure(task);
                    let _reserved = store.working_set(stage.owner(), 2 * run_bytes)?;
                    let router = Router::new(&schema, coding.clone(), max_bits, wanted.clone(), task.id.hash());
                    routed.add_task(task, router, run_bytes, &store, stage.owner()).await?;
                }
                Ok(routed)
            });
        }
        let mut all = Routed::new(None);
        for of_driver in Drivers::start(drivers).finish().await? {
            all.merge(of_driver)?;
        }
        let Routed { mut runs, bins, notes, left_out, sum_of_codes } = all;
        runs.sort_by(|a, b| a.task.cmp(&b.task));
        let bytes = runs.iter().map(|r| r.handle.metadata().size_bytes).sum();
        Ok(Self {
            bytes,
            plenty: bytes <= stage_memory(context)? / PLENTY_PART,
            rows: runs.iter().map(|r| r.pieces.rows).sum(),
            runs,
            bins,
            left_out,
            sum_of_codes,
            seen: notes.map(|notes| notes.seen().map(Arc::new)).transpose()?,
            schema: input.schema(),
            batch_rows: context.session_config().batch_size(),
            store,
            owner: Arc::clone(stage.owner()),
        })
    }

    /// What is known of the rows.
    pub(crate) fn extent(&self) -> Extent {
        let (rows, bytes, sum_of_codes) = (self.rows as u64, self.bytes, self.sum_of_codes);
        Extent { rows, bytes, sum_of_codes, bins: self.bins.clone(), keys: Vec::new() }
    }

    /// Bytes of the rows by the leading bits of their codes.
    pub(crate) fn bins(&self) -> &[usize] {
        &self.bins
    }

    /// How many rows were not wanted.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// What is known of the keys of all rows, if they were noted.
    pub(crate) fn seen(&self) -> Option<&Arc<SeenKeys>> {
        self.seen.as_ref()
    }

    /// The rows with codes in `range` of the first of `runs` and as many of the next as give a batch of a useful size,
    /// with columns of `schema`: without their codes, or with them; and how many were read. Blocks.
    fn read(
        &self,
        schema: &SchemaRef,
        runs: Range<usize>,
        range: &RangeInclusive<u64>,
    ) -> Result<(Vec<RecordBatch>, usize)> {
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let (mut batches, mut group, mut read) = (Vec::new(), Piece::default(), 0);
        for run in &self.runs[runs] {
            if !batches.is_empty() {
                break;
            }
            read += 1;
            for piece in run.handle.batches(run.pieces.between(*range.start(), *range.end())) {
                let piece = inside(piece?, *range.start(), *range.end())?.project(&columns)?;
                // A slice keeps its run in memory, where that is no harm.
                if self.plenty && piece.num_rows() >= MIN_SLICE_ROWS {
                    if group.rows > 0 {
                        batches.push(std::mem::take(&mut group).copied()?);
                    }
                    batches.push(piece);
                } else if piece.num_rows() > 0 {
                    group.push(piece);
                }
                if group.rows as usize >= self.batch_rows {
                    batches.push(std::mem::take(&mut group).copied()?);
                }
            }
        }
        if group.rows > 0 {
            batches.push(group.copied()?);
        }
        let batches = batches.into_iter().map(|batch| Ok(batch.with_schema(Arc::clone(schema))?));
        Ok((batches.collect::<Result<_>>()?, read))
    }

    /// All rows with codes in `range` of `runs`, read on IO threads as they are asked for.
    pub(crate) fn stream(
        self: &Arc<Self>,
        runs: Range<usize>,
        range: RangeInclusive<u64>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        self.stream_as(Arc::clone(&self.schema), runs, range)
    }

    /// The same of all runs, with their codes.
    pub(crate) fn stream_with_codes(
        self: &Arc<Self>,
        range: RangeInclusive<u64>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        self.stream_as(self.schema_with_code(), 0..self.len(), range)
    }

    fn stream_as(
        self: &Arc<Self>,
        schema: SchemaRef,
        runs: Range<usize>,
        range: RangeInclusive<u64>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let all = Arc::clone(self);
        let read = move |left: Range<usize>| {
            let (all, range, schema) = (Arc::clone(&all), range.clone(), Arc::clone(&schema));
            begun_on_io_thread(move || {
                let (batches, read) = all.read(&schema, left.clone(), &range)?;
                Ok((batches, left.start + read..left.end))
            })
        };
        // While what was read is used, the next is read.
        stream::try_unfold((None, runs, read), |(reading, left, read)| async move {
            let reading = match reading {
                Some(reading) => reading,
                None if left.is_empty() => return Ok(None),
                None => read(left),
            };
            let (batches, left): (_, Range<usize>) = reading.await?;
            let next = (!left.is_empty()).then(|| read(left));
            Ok::<_, DataFusionError>(Some((stream::iter(batches.into_iter().map(Ok)), (next, 0..0, read))))
        })
        .try_flatten()
        .boxed()
    }

    /// The codes in `range`, in order, one for each row. Blocks.
    pub(crate) fn codes(&self, range: &RangeInclusive<u64>) -> Result<Vec<u64>> {
        let mut codes = Vec::new();
        for run in &self.runs {
            for piece in run.handle.batches(run.pieces.between(*range.start(), *range.end())) {
                let piece = piece?;
                let of_piece = piece.column(piece.num_columns() - 1).as_primitive::<UInt64Type>();
                codes.extend(of_piece.values().iter().filter(|code| range.contains(code)));
            }
        }
        codes.sort_unstable();
        Ok(codes)
    }

    /// The pieces of a run in which codes between `low` and `high` may be, with the codes in the last column.
    pub(super) fn pieces(&self, run: &RoutedRun, low: u64, high: u64) -> impl Iterator<Item = Result<RecordBatch>> {
        // A slice would keep the whole run from leaving memory.
        let copies = !self.plenty && run.handle.is_in_memory();
        let pieces = run.handle.batches(run.pieces.between(low, high));
        pieces.map(move |piece| if copies { copied(&piece?) } else { piece })
    }

    /// About how many bytes the rows with codes in `range` have.
    pub(super) fn bytes_in(&self, range: &RangeInclusive<u64>) -> usize {
        let starts = |bin: &usize| range.contains(equal_range(*bin, self.bins.len()).start());
        (0..self.bins.len()).filter(starts).map(|bin| self.bins[bin]).sum()
    }

    /// Columns of the rows, with the code.
    pub(crate) fn schema_with_code(&self) -> SchemaRef {
        with_code(&self.schema)
    }

    /// Columns of the rows, without the code.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Number of all rows.
    pub(crate) fn num_rows(&self) -> usize {
        self.rows
    }

    /// Bytes of all rows, with their codes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many runs there are.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }
}

/// Pieces that become one.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) pieces: Vec<RecordBatch>,
    pub(super) rows: u32,
    pub(super) bytes: usize,
}

impl Piece {
    pub(super) fn push(&mut self, piece: RecordBatch) {
        self.rows += piece.num_rows() as u32;
        self.bytes += sliced_bytes(&piece);
        self.pieces.push(piece);
    }

    /// Put together, in memory of its own: a slice would keep the whole run from leaving memory.
    pub(super) fn copied(self) -> Result<RecordBatch> {
        match self.pieces.as_slice() {
            [piece] => copied(piece),
            _ => self.put_together(),
        }
    }

    pub(super) fn put_together(mut self) -> Result<RecordBatch> {
        match self.pieces.len() {
            1 => Ok(self.pieces.remove(0)),
            _ => compact_views(&concat_batches(&self.pieces[0].schema(), &self.pieces)?),
        }
    }
}
