//! The rows of a map side in the store, so that any range of them can be read back.
//!
//! Every row has a 64-bit code: a random number, or a hash of its keys. The map side cuts the rows of each task into runs of
//! some mebibytes, and each run into pieces by the leading bits of the code. A bucket is a range of codes, and reads the pieces
//! that overlap it: how many buckets there are is decided when all bytes are known.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, BooleanArray, RecordBatch, UInt64Array, new_null_array};
use datafusion::arrow::compute::{concat_batches, filter_record_batch, interleave_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use crate::block::{Block, TaskId, compact_views, copied, mix, row_random, sliced_bytes};
use crate::physical::conservation::check_rows;
use crate::physical::memory::query_memory;
use crate::physical::stage::StageMetrics;
use crate::physical::tasks::task_stream;
use crate::runtime::{Drivers, begun_on_io_thread};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// A task's rows are routed in runs of about this many bytes.
const RUN_BYTES: usize = 32 << 20;
/// Bytes that a piece should have at least; smaller ones are slow to read back.
const PIECE_BYTES: usize = 16 << 10;
/// The same for each column, whose buffers take bytes of their own on disk.
const PIECE_COLUMN_BYTES: usize = 256;
/// A run has at most 2 to this many pieces.
const MAX_PIECE_BITS: u32 = 10;
/// A large run has at least 2 to this many, of a mebibyte.
const LEAST_PIECE_BITS: u32 = 5;
/// The codes of a run with at most this many rows stay in memory: its rows are large, and its pieces belong to few of the
/// buckets that they overlap.
const KNOWN_KEYS: usize = 4096;

/// A slice of a run with so many rows is a batch of its own, where runs may stay in memory.
const LEAST_SLICE_ROWS: usize = 1024;
/// Runs that are less than this part of the memory may stay in it.
const PLENTY_PART: usize = 4;

/// What is in one piece of every run is cut into at most so many parts, each of which reads the whole piece.
const MOST_PARTS: usize = 1 << 8;
/// Seed of the hashes of keys.
const CODE_SEED: u64 = 0x5EED;

/// What a row's code is made of.
#[derive(Debug, Clone)]
pub(crate) enum Coding {
    /// A random number for each row, which the seed, its task and its place in it give.
    Random {
        /// Gives the numbers.
        seed: u64,
    },
    /// A hash of what these expressions give: equal keys have equal codes.
    Hash {
        /// Keys, of which there may be several.
        keys: Vec<Arc<dyn PhysicalExpr>>,
    },
}

impl Coding {
    fn codes(&self, batch: &RecordBatch, task: u64, first_row: u64) -> Result<Vec<u64>> {
        let rows = batch.num_rows();
        match self {
            Self::Random { seed } => {
                let rows = first_row..first_row + rows as u64;
                Ok(rows.map(|row| row_random(*seed, task, row)).collect())
            }
            Self::Hash { keys } => {
                let arrays: Vec<_> =
                    keys.iter().map(|key| key.evaluate(batch)?.into_array(rows)).collect::<Result<_>>()?;
                let mut codes = vec![0; rows];
                create_hashes(&arrays, &RandomState::with_seed(CODE_SEED), &mut codes)?;
                // The leading bits tell buckets apart, and others do so in hash tables.
                codes.iter_mut().for_each(|code| *code = mix(*code));
                Ok(codes)
            }
        }
    }
}

/// The code of a row whose only key, of this type, is null.
pub(crate) fn code_of_null(key_type: &DataType) -> Result<u64> {
    let mut codes = [0];
    create_hashes(&[new_null_array(key_type, 1)], &RandomState::with_seed(CODE_SEED), &mut codes)?;
    Ok(mix(codes[0]))
}

/// The rows of one run, as one block whose batch i holds the keys with leading bits i, keys in the last column.
#[derive(Debug)]
pub(super) struct Run {
    task: TaskId,
    pub(super) pieces: Pieces,
    pub(super) handle: BlockHandle,
}

/// What is known of a run's rows without reading them.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The leading bits that tell pieces apart.
    bits: u32,
    rows: usize,
    /// All keys in order, if there are few.
    keys: Option<Vec<u64>>,
}

impl Pieces {
    /// The pieces in which rows with keys between `low` and `high` may be.
    pub(super) fn between(&self, low: u64, high: u64) -> impl Iterator<Item = usize> {
        let pieces = match self.rows {
            0 => 0..0,
            _ => piece_of(low, self.bits)..piece_of(high, self.bits) + 1,
        };
        pieces.filter(move |piece| match &self.keys {
            Some(keys) => {
                let from = keys.partition_point(|key| *key < low || piece_of(*key, self.bits) < *piece);
                keys.get(from).is_some_and(|key| *key <= high && piece_of(*key, self.bits) == *piece)
            }
            None => true,
        })
    }
}

/// All runs of a map side.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(super) runs: Vec<Run>,
    pub(super) schema: SchemaRef,
    /// Bytes of all rows, with their codes.
    pub(super) bytes: usize,
    pub(super) rows: usize,
    /// Whether there is so much memory that slices of runs may keep all of them in it.
    pub(super) plenty: bool,
    /// Bytes by the leading bits of the codes.
    pub(super) bins: Vec<usize>,
    /// Rows of an output batch.
    pub(super) batch_rows: usize,
    pub(super) store: Arc<BlockStore>,
    pub(super) owner: Arc<Owner>,
}

impl Runs {
    /// Runs the tasks of `input` and routes their rows, for `num_buckets` ranges of codes of equal width where that is known.
    pub(crate) async fn collect(
        input: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
        stage: &StageMetrics,
        coding: Coding,
        num_buckets: Option<usize>,
    ) -> Result<Self> {
        let store = BlockStore::of_task(context)?;
        let most_bits = num_buckets.map_or(MAX_PIECE_BITS, most_piece_bits);
        let partitions = input.output_partitioning().partition_count();
        let run_bytes = RUN_BYTES.min(query_memory(context)? / (8 * partitions)).max(1);
        let mut drivers = Vec::new();
        for partition in 0..partitions {
            let mut tasks = task_stream(input, partition, Arc::clone(context))?;
            let (store, stage, schema, coding) = (Arc::clone(&store), stage.clone(), input.schema(), coding.clone());
            drivers.push(async move {
                let (mut runs, mut bins) = (Vec::new(), vec![0; 1 << MAX_PIECE_BITS]);
                while let Some(task) = tasks.try_next().await? {
                    let mut task = stage.measure(task);
                    let mut router = Router::new(&schema, coding.clone(), most_bits, task.id.hash());
                    let (mut taken, mut given) = (0, 0);
                    let _reserved = store.working_set(stage.owner(), 2 * run_bytes)?;
                    loop {
                        let batch = task.batches.try_next().await?;
                        let ended = batch.is_none();
                        let bytes = batch.as_ref().map_or(0, sliced_bytes);
                        if router.rows > 0 && (ended || router.bytes + bytes > run_bytes) {
                            let (pieces, block) = router.route(&mut bins)?;
                            let handle = store.put_pieces(block, NextUse::AfterInput, stage.owner())?;
                            given += handle.metadata().num_rows;
                            runs.push(Run { task: task.id.child(runs.len()), pieces, handle });
                        }
                        match batch {
                            Some(batch) => {
                                taken += batch.num_rows();
                                router.push(batch, bytes);
                            }
                            None => break,
                        }
                    }
                    check_rows(|| format!("routing the rows of task {}", task.id), taken, given)?;
                }
                Ok((runs, bins))
            });
        }
        let (mut runs, mut bins) = (Vec::<Run>::new(), vec![0; 1 << MAX_PIECE_BITS]);
        for (of_driver, bins_of_driver) in Drivers::start(drivers).finish().await? {
            runs.extend(of_driver);
            bins.iter_mut().zip(bins_of_driver).for_each(|(bin, more)| *bin += more);
        }
        runs.sort_by(|a, b| a.task.cmp(&b.task));
        let bytes = runs.iter().map(|r| r.handle.metadata().size_bytes).sum();
        Ok(Self {
            bytes,
            plenty: bytes <= query_memory(context)? / PLENTY_PART,
            rows: runs.iter().map(|r| r.pieces.rows).sum(),
            runs,
            bins,
            schema: input.schema(),
            batch_rows: context.session_config().batch_size(),
            store,
            owner: Arc::clone(stage.owner()),
        })
    }

    /// Bytes of the rows by the leading bits of their codes.
    pub(crate) fn bins(&self) -> &[usize] {
        &self.bins
    }

    /// The rows with codes in `range` of the first of `runs` and as many of the next as give a batch of a useful size, without their
    /// codes; and how many were read. Blocks.
    pub(crate) fn read(&self, runs: Range<usize>, range: &RangeInclusive<u64>) -> Result<(Vec<RecordBatch>, usize)> {
        let columns: Vec<usize> = (0..self.schema.fields().len()).collect();
        let (mut batches, mut group, mut read) = (Vec::new(), Group::default(), 0);
        for run in &self.runs[runs] {
            if !batches.is_empty() {
                break;
            }
            read += 1;
            for piece in run.handle.batches(run.pieces.between(*range.start(), *range.end())) {
                let piece = inside(piece?, *range.start(), *range.end())?.project(&columns)?;
                // A slice keeps its run in memory, where that is no harm.
                if self.plenty && piece.num_rows() >= LEAST_SLICE_ROWS {
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
        let batches = batches.into_iter().map(|batch| Ok(batch.with_schema(Arc::clone(&self.schema))?));
        Ok((batches.collect::<Result<_>>()?, read))
    }

    /// All rows with codes in `range` of `runs`, read on IO threads as they are asked for.
    pub(crate) fn stream(
        self: &Arc<Self>,
        runs: Range<usize>,
        range: RangeInclusive<u64>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let all = Arc::clone(self);
        let read = move |left: Range<usize>| {
            let (all, range) = (Arc::clone(&all), range.clone());
            begun_on_io_thread(move || {
                let (batches, read) = all.read(left.clone(), &range)?;
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
    pub(super) fn pieces(&self, run: &Run, low: u64, high: u64) -> impl Iterator<Item = Result<RecordBatch>> {
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

/// All codes in `n` ranges of equal width.
pub(crate) fn equal_ranges(n: usize) -> Vec<RangeInclusive<u64>> {
    (0..n.max(1)).map(|k| equal_range(k, n.max(1))).collect()
}

/// Range number `k` of `n` of equal width.
pub(super) fn equal_range(k: usize, n: usize) -> RangeInclusive<u64> {
    let start = |k: usize| ((k as u128) << 64).div_ceil(n as u128);
    start(k) as u64..=(start(k + 1) - 1) as u64
}

/// A range of codes and what is known of the bytes of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) range: RangeInclusive<u64>,
    pub(crate) bytes: usize,
}

/// Cuts all codes into ranges, so that each has about `target` bytes of those in `bins` at most, but never fewer than
/// `least` ranges. What is in one bin that has more is cut by `split`, which gets its range and bytes.
pub(crate) fn cuts(
    bins: &[usize],
    target: usize,
    least: usize,
    mut split: impl FnMut(Cut, usize) -> Result<Vec<Cut>>,
) -> Result<Vec<Cut>> {
    let total: usize = bins.iter().sum();
    let target = target.min(total.div_ceil(least.max(1))).max(1);
    let (mut cuts, mut open) = (Vec::new(), None::<Cut>);
    for (bin, bytes) in bins.iter().copied().enumerate() {
        let range = equal_range(bin, bins.len());
        if bytes > target {
            cuts.extend(open.take());
            cuts.extend(split(Cut { range, bytes }, target)?);
            continue;
        }
        match &mut open {
            Some(cut) if cut.bytes + bytes <= target => {
                *cut = Cut { range: *cut.range.start()..=*range.end(), bytes: cut.bytes + bytes };
            }
            _ => cuts.extend(open.replace(Cut { range, bytes })),
        }
    }
    cuts.extend(open);
    Ok(cuts)
}

/// Parts of equal width with about `target` bytes each. Of no use where the bytes are of one key.
pub(crate) fn equal_parts(cut: &Cut, target: usize) -> Vec<Cut> {
    let (start, width) = (u128::from(*cut.range.start()), u128::from(*cut.range.end() - *cut.range.start()) + 1);
    let parts = (cut.bytes.div_ceil(target.max(1)).min(MOST_PARTS) as u128).min(width);
    let end = |part: u128| start + width * part / parts;
    let part = |part| Cut { range: end(part) as u64..=(end(part + 1) - 1) as u64, bytes: cut.bytes / parts as usize };
    (0..parts).map(part).collect()
}

/// Parts with about `target` bytes each, by the codes that there are in order: one that has more for itself is a part of
/// its own.
pub(crate) fn exact_parts(cut: &Cut, codes: &[u64], target: usize) -> Vec<Cut> {
    let row_bytes = (cut.bytes / codes.len().max(1)).max(1);
    let (mut parts, mut next, mut bytes) = (Vec::new(), *cut.range.start(), 0);
    let mut close = |next: &mut u64, end: u64, bytes: &mut usize| {
        parts.push(Cut { range: *next..=end, bytes: std::mem::take(bytes) });
        *next = end.saturating_add(1);
    };
    for rows in codes.chunk_by(|a, b| a == b) {
        let (code, more) = (rows[0], rows.len() * row_bytes);
        if bytes + more > target && code > next {
            close(&mut next, code - 1, &mut bytes);
        }
        bytes += more;
        if bytes > target && code < *cut.range.end() {
            close(&mut next, code, &mut bytes);
        }
    }
    parts.push(Cut { range: next..=*cut.range.end(), bytes });
    parts
}

/// Gathers the batches of a run and cuts them into pieces.
struct Router {
    with_key: SchemaRef,
    coding: Coding,
    /// A run has at most 2 to this many pieces.
    most_bits: u32,
    task: u64,
    next_row: u64,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Router {
    fn new(schema: &SchemaRef, coding: Coding, most_bits: u32, task: u64) -> Self {
        let key = Arc::new(Field::new("__blockyard_key", DataType::UInt64, false));
        let with_key = Arc::new(Schema::new(schema.fields().iter().cloned().chain([key]).collect::<Vec<_>>()));
        Self { with_key, coding, most_bits, task, next_row: 0, batches: Vec::new(), rows: 0, bytes: 0 }
    }

    fn push(&mut self, batch: RecordBatch, bytes: usize) {
        self.rows += batch.num_rows();
        self.bytes += bytes;
        self.batches.push(batch);
    }

    /// Empties the router into one block, and counts its bytes in `bins`. Batches are slices of one: thousands of small buffers would take much
    /// more memory than their bytes.
    fn route(&mut self, bins: &mut [usize]) -> Result<(Pieces, Block)> {
        let piece_bytes = PIECE_BYTES.max(PIECE_COLUMN_BYTES * self.with_key.flattened_fields().len());
        let bits = (self.bytes / piece_bytes).clamp(1, self.rows.max(1)).ilog2().min(self.most_bits);
        let row_bytes = (self.bytes / self.rows.max(1) + size_of::<u64>()).max(1);
        let mut starts = vec![0; (1 << bits) + 1];
        let mut piece_of_row = Vec::with_capacity(self.rows);
        let mut known = (self.rows <= KNOWN_KEYS).then(Vec::new);
        let mut keyed = Vec::with_capacity(self.batches.len());
        for batch in self.batches.drain(..) {
            let first = self.next_row;
            self.next_row += batch.num_rows() as u64;
            let keys = self.coding.codes(&batch, self.task, first)?;
            keys.iter().for_each(|key| bins[piece_of(*key, MAX_PIECE_BITS)] += row_bytes);
            piece_of_row.extend(keys.iter().map(|key| piece_of(*key, bits)));
            known.iter_mut().for_each(|known| known.extend_from_slice(&keys));
            let columns = batch.columns().iter().cloned().chain([Arc::new(UInt64Array::from(keys)) as _]).collect();
            keyed.push(RecordBatch::try_new(Arc::clone(&self.with_key), columns)?);
        }
        piece_of_row.iter().for_each(|piece| starts[piece + 1] += 1);
        (0..1 << bits).for_each(|piece| starts[piece + 1] += starts[piece]);
        let (mut places, mut next) = (vec![(0, 0); self.rows], starts.clone());
        let rows = keyed.iter().enumerate().flat_map(|(b, batch)| (0..batch.num_rows()).map(move |row| (b, row)));
        for (place, piece) in rows.zip(piece_of_row) {
            places[next[piece]] = place;
            next[piece] += 1;
        }
        let together = interleave_record_batch(&keyed.iter().collect::<Vec<_>>(), &places)?;
        let pieces = starts.windows(2).map(|ends| together.slice(ends[0], ends[1] - ends[0])).collect();
        known.iter_mut().for_each(|keys| keys.sort_unstable());
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        Ok((Pieces { bits, rows, keys: known }, Block::new(Arc::clone(&self.with_key), pieces)))
    }
}

/// The bits that tell `num_buckets` equal ranges apart, if they do: then a bucket is one piece of a run, or several where that would
/// be much to read back at once.
fn most_piece_bits(num_buckets: usize) -> u32 {
    match num_buckets.is_power_of_two() {
        true => num_buckets.ilog2().clamp(LEAST_PIECE_BITS, MAX_PIECE_BITS),
        false => MAX_PIECE_BITS,
    }
}

fn piece_of(key: u64, bits: u32) -> usize {
    key.checked_shr(64 - bits).unwrap_or(0) as usize
}

/// The rows of a piece whose keys are between `low` and `high`, in memory of their own when they are not all.
pub(super) fn inside(piece: RecordBatch, low: u64, high: u64) -> Result<RecordBatch> {
    let keys = piece.column(piece.num_columns() - 1).as_primitive::<UInt64Type>();
    let chosen = BooleanArray::from_unary(keys, |key| (low..=high).contains(&key));
    match chosen.true_count() == piece.num_rows() {
        true => Ok(piece),
        false => compact_views(&filter_record_batch(&piece, &chosen)?),
    }
}

/// Pieces that become one.
#[derive(Default)]
pub(super) struct Group {
    pub(super) pieces: Vec<RecordBatch>,
    pub(super) rows: u32,
    pub(super) bytes: usize,
}

impl Group {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_with_known_keys_are_those_with_rows_in_the_range() {
        let keys: Vec<u64> = [1, 5, 6, 9, 15].map(|k| k << 60).to_vec();
        let pieces = |keys| Pieces { bits: 2, rows: 5, keys };
        let between = |pieces: &Pieces, low: u64, high: u64| pieces.between(low << 60, high << 60).collect::<Vec<_>>();
        let known = pieces(Some(keys));
        assert_eq!(between(&known, 0, 15), [0, 1, 2, 3]);
        assert_eq!(between(&known, 2, 4), [] as [usize; 0]);
        assert_eq!(between(&known, 6, 8), [1]);
        assert_eq!(between(&known, 7, 9), [2]);
        assert_eq!(between(&known, 10, 14), [] as [usize; 0]);
        assert_eq!(between(&pieces(None), 2, 4), [0, 1]);
        assert_eq!(between(&Pieces { bits: 0, rows: 0, keys: None }, 0, 15), [] as [usize; 0]);
    }

    fn cover_all(cuts: &[Cut]) {
        let mut next = 0u128;
        for cut in cuts {
            assert_eq!(u128::from(*cut.range.start()), next, "{cuts:?}");
            next = u128::from(*cut.range.end()) + 1;
        }
        assert_eq!(next, 1 << 64);
    }

    #[test]
    fn cuts_cover_all_codes_once_and_follow_the_bytes() {
        let mut bins = vec![10; 1 << MAX_PIECE_BITS];
        bins[7] = 5000;
        let cut = |target, least| cuts(&bins, target, least, |cut, target| Ok(equal_parts(&cut, target))).unwrap();
        for (target, least) in [(1, 1), (100, 1), (100, 64), (usize::MAX, 1), (usize::MAX, 8)] {
            let cuts = cut(target, least);
            assert!(cuts.len() >= least, "{target} {least}");
            cover_all(&cuts);
        }
        assert_eq!(cut(usize::MAX, 1).len(), 1);
        assert!(cut(100, 1).iter().all(|cut| cut.bytes <= 100));
        assert_eq!(cuts(&[0; 4], 10, 3, |_, _| Ok(Vec::new())).unwrap().len(), 1);
    }

    #[test]
    fn a_code_that_is_too_many_rows_is_a_part_of_its_own() {
        let cut = Cut { range: 0..=u64::MAX, bytes: 1000 };
        let codes: Vec<u64> = (0..20).chain([50; 60]).chain(60..80).collect();
        let parts = exact_parts(&cut, &codes, 100);
        cover_all(&parts);
        let sizes: Vec<_> = parts.iter().map(|part| part.bytes).collect();
        assert_eq!(sizes, [100, 100, 600, 100, 100]);
        assert_eq!(parts[2].range, 50..=50);
        cover_all(&exact_parts(&cut, &[u64::MAX; 100], 100));
        cover_all(&exact_parts(&cut, &[0; 100], 100));
    }
}
