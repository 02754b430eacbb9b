//! A uniform random permutation of all rows, out of core.
//!
//! Every row draws a 64-bit key from the seed, its task and its row number, and the output is sorted by key. So the order
//! depends on nothing else: not on the number of buckets, threads or the memory limit. The map side cuts each task's rows
//! into pieces by the leading bits of the key; a bucket is a range of keys, which reads the pieces that overlap it.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, BooleanArray, RecordBatch, UInt64Array};
use datafusion::arrow::compute::{concat_batches, filter_record_batch, interleave_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use crate::block::{Block, TaskId, compact_views, copied, row_random, sliced_bytes};
use crate::config::BlockyardOptions;
use crate::physical::memory::query_memory;
use crate::physical::stage::StageMetrics;
use crate::physical::tasks::task_stream;
use crate::runtime::{Drivers, on_io_thread};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, WorkingSet};

/// Rows that an output task should have at least, so that small inputs have few.
const TASK_ROWS: usize = 8192;
/// A task's rows are routed in runs of about this many bytes.
const RUN_BYTES: usize = 32 << 20;
/// Bytes that a piece should have at least; smaller ones are slow to read back.
const PIECE_BYTES: usize = 16 << 10;
/// The same for each column, whose buffers take bytes of their own on disk.
const PIECE_COLUMN_BYTES: usize = 256;
/// A bucket that is being sorted has about this many arrays at most: each takes some hundred bytes beside its values.
const MANY_ARRAYS: usize = 1 << 14;
/// The pieces of a bucket are put together to about this many.
const GROUPS: usize = 8;
/// A run has at most 2 to this many pieces.
const MAX_PIECE_BITS: u32 = 10;
/// The keys of a run with at most this many rows stay in memory: its rows are large, and its pieces belong to few of the
/// buckets that they overlap.
const KNOWN_KEYS: usize = 4096;

/// The rows of one run, as one block whose batch i holds the keys with leading bits i, keys in the last column.
#[derive(Debug)]
struct Run {
    task: TaskId,
    pieces: Pieces,
    handle: BlockHandle,
}

/// What is known of a run's rows without reading them.
#[derive(Debug)]
struct Pieces {
    /// The leading bits that tell pieces apart.
    bits: u32,
    rows: usize,
    /// All keys in order, if there are few.
    keys: Option<Vec<u64>>,
}

impl Pieces {
    /// The pieces in which rows with keys between `low` and `high` may be.
    fn between(&self, low: u64, high: u64) -> impl Iterator<Item = usize> {
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

/// All runs of a map side, how many tasks read them, and in how many buckets each.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
    schema: SchemaRef,
    num_tasks: usize,
    buckets_per_task: usize,
    /// What a bucket has, about.
    sorted_bytes: usize,
    /// Rows of an output batch.
    batch_rows: usize,
    store: Arc<BlockStore>,
    owner: Arc<Owner>,
}

/// The map side: runs `input`'s tasks and routes their rows.
pub(super) async fn map_side(
    input: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    stage: &StageMetrics,
    seed: u64,
    num_blocks: Option<usize>,
) -> Result<Runs> {
    let store = BlockStore::of_task(context)?;
    let options = BlockyardOptions::from_task(context);
    let partitions = input.output_partitioning().partition_count();
    let run_bytes = RUN_BYTES.min(query_memory(context)? / (8 * partitions)).max(1);
    let mut drivers = Vec::new();
    for partition in 0..partitions {
        let mut tasks = task_stream(input, partition, Arc::clone(context))?;
        let (store, stage, schema) = (Arc::clone(&store), stage.clone(), input.schema());
        drivers.push(async move {
            let mut runs = Vec::new();
            while let Some(task) = tasks.try_next().await? {
                let mut task = stage.measure(task);
                let mut router = Router::new(&schema, seed, task.id.hash());
                let _reserved = store.working_set(stage.owner(), 2 * run_bytes)?;
                loop {
                    let batch = task.batches.try_next().await?;
                    let ended = batch.is_none();
                    let bytes = batch.as_ref().map_or(0, sliced_bytes);
                    if router.rows > 0 && (ended || router.bytes + bytes > run_bytes) {
                        let (pieces, block) = router.route()?;
                        let handle = store.put_pieces(block, NextUse::AfterInput, stage.owner())?;
                        runs.push(Run { task: task.id.child(runs.len()), pieces, handle });
                    }
                    match batch {
                        Some(batch) => router.push(batch, bytes),
                        None => break,
                    }
                }
            }
            Ok(runs)
        });
    }
    let mut runs: Vec<Run> = Drivers::start(drivers).finish().await?.into_iter().flatten().collect();
    runs.sort_by(|a, b| a.task.cmp(&b.task));
    let bytes: usize = runs.iter().map(|r| r.handle.metadata().size_bytes).sum();
    let rows: usize = runs.iter().map(|r| r.pieces.rows).sum();
    // Output tasks follow from the data alone: their ids give the randomness above. Powers of two keep the small
    // differences that the limit makes to the bytes (offsets of more or fewer pieces) from changing their number.
    let by_size = (bytes / options.target_shuffle_max_block_size.bound()).next_power_of_two();
    let by_rows = (rows / TASK_ROWS).min(2 * options.num_cpus);
    let num_tasks = num_blocks.unwrap_or_else(|| by_size.max(by_rows));
    // What is sorted at once follows from the limit.
    let sorted_bytes = (query_memory(context)? / (8 * partitions)).max(1 << 20);
    // A power of two as well: where the number of tasks is one, no piece then belongs to two buckets.
    let buckets_per_task = (bytes / num_tasks.max(1)).div_ceil(sorted_bytes).next_power_of_two();
    let (schema, owner, num_tasks) = (input.schema(), Arc::clone(stage.owner()), num_tasks.max(1));
    let batch_rows = context.session_config().batch_size();
    Ok(Runs { runs, schema, num_tasks, buckets_per_task, sorted_bytes, batch_rows, store, owner })
}

/// Gathers the batches of a run and cuts them into pieces.
struct Router {
    with_key: SchemaRef,
    seed: u64,
    task: u64,
    next_row: u64,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Router {
    fn new(schema: &SchemaRef, seed: u64, task: u64) -> Self {
        let key = Arc::new(Field::new("__blockyard_key", DataType::UInt64, false));
        let with_key = Arc::new(Schema::new(schema.fields().iter().cloned().chain([key]).collect::<Vec<_>>()));
        Self { with_key, seed, task, next_row: 0, batches: Vec::new(), rows: 0, bytes: 0 }
    }

    fn push(&mut self, batch: RecordBatch, bytes: usize) {
        self.rows += batch.num_rows();
        self.bytes += bytes;
        self.batches.push(batch);
    }

    /// Empties the router into one block, whose batches are slices of one: thousands of small buffers would take much
    /// more memory than their bytes.
    fn route(&mut self) -> Result<(Pieces, Block)> {
        let piece_bytes = PIECE_BYTES.max(PIECE_COLUMN_BYTES * self.with_key.flattened_fields().len());
        let bits = (self.bytes / piece_bytes).clamp(1, self.rows.max(1)).ilog2().min(MAX_PIECE_BITS);
        let mut starts = vec![0; (1 << bits) + 1];
        let mut piece_of_row = Vec::with_capacity(self.rows);
        let mut known = (self.rows <= KNOWN_KEYS).then(Vec::new);
        let mut keyed = Vec::with_capacity(self.batches.len());
        for batch in self.batches.drain(..) {
            let first = self.next_row;
            self.next_row += batch.num_rows() as u64;
            let keys: Vec<u64> = (first..self.next_row).map(|row| row_random(self.seed, self.task, row)).collect();
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

fn piece_of(key: u64, bits: u32) -> usize {
    key.checked_shr(64 - bits).unwrap_or(0) as usize
}

impl Runs {
    /// Number of output tasks, at least one.
    pub(super) fn num_tasks(&self) -> usize {
        self.num_tasks
    }

    /// The keys of a bucket, both ends included.
    fn key_range(&self, bucket: usize) -> (u64, u64) {
        let n = (self.num_tasks * self.buckets_per_task) as u128;
        let start = |k: usize| ((k as u128) << 64).div_ceil(n);
        (start(bucket) as u64, (start(bucket + 1) - 1) as u64)
    }

    /// The rows of an output task in their final order, sorted bucket by bucket.
    pub(super) fn read(self: Arc<Self>, task: usize) -> BoxStream<'static, Result<RecordBatch>> {
        let first = task * self.buckets_per_task;
        let buckets = stream::iter(first..first + self.buckets_per_task);
        buckets
            .then(move |bucket| {
                let runs = Arc::clone(&self);
                on_io_thread(move || runs.order(bucket))
            })
            .map_ok(|ordered| {
                let starts = (0..ordered.places.len()).step_by(ordered.batch_rows);
                stream::iter(starts).map(move |start| ordered.batch(start))
            })
            .try_flatten()
            .boxed()
    }

    fn order(&self, bucket: usize) -> Result<Ordered> {
        let (low, high) = self.key_range(bucket);
        let reserved = self.store.working_set(&self.owner, 2 * self.sorted_bytes)?;
        let columns: Vec<usize> = (0..self.schema.fields().len()).collect();
        // Pieces are put together on the way: a few large ones take less memory beside their values, and less time.
        let most = (MANY_ARRAYS / 2 / columns.len().max(1)).max(1);
        let (mut pieces, mut group) = (Vec::new(), Group::default());
        let mut places: Vec<(u64, u32, u32)> = Vec::new();
        for run in &self.runs {
            for index in run.pieces.between(low, high) {
                let piece = match run.handle.batch_in_memory(index) {
                    // A slice would keep the whole run from leaving memory.
                    Some(piece) => copied(&piece)?,
                    None => run.handle.get_batch(index)?,
                };
                let piece = inside(piece, low, high)?;
                let keys = piece.column(columns.len()).as_primitive::<UInt64Type>().values();
                let number = pieces.len() as u32;
                places.extend(keys.iter().zip(group.rows..).map(|(key, row)| (*key, number, row)));
                group.push(piece.project(&columns)?);
                if group.bytes >= self.sorted_bytes / GROUPS || group.pieces.len() >= most {
                    pieces.push(std::mem::take(&mut group).put_together()?);
                }
            }
        }
        if !group.pieces.is_empty() {
            pieces.push(group.put_together()?);
        }
        // Equal keys keep the order of the input, which the tuple gives too.
        places.sort_unstable();
        let places = places.into_iter().map(|(_, piece, row)| (piece as usize, row as usize)).collect();
        let (schema, batch_rows) = (Arc::clone(&self.schema), self.batch_rows);
        Ok(Ordered { schema, batch_rows, pieces, places, _reserved: reserved })
    }
}

/// The rows of a piece whose keys are between `low` and `high`, in memory of their own when they are not all.
fn inside(piece: RecordBatch, low: u64, high: u64) -> Result<RecordBatch> {
    let keys = piece.column(piece.num_columns() - 1).as_primitive::<UInt64Type>();
    let chosen = BooleanArray::from_unary(keys, |key| (low..=high).contains(&key));
    match chosen.true_count() == piece.num_rows() {
        true => Ok(piece),
        false => compact_views(&filter_record_batch(&piece, &chosen)?),
    }
}

/// Pieces that become one.
#[derive(Default)]
struct Group {
    pieces: Vec<RecordBatch>,
    rows: u32,
    bytes: usize,
}

impl Group {
    fn push(&mut self, piece: RecordBatch) {
        self.rows += piece.num_rows() as u32;
        self.bytes += sliced_bytes(&piece);
        self.pieces.push(piece);
    }

    fn put_together(mut self) -> Result<RecordBatch> {
        match self.pieces.len() {
            1 => Ok(self.pieces.remove(0)),
            _ => compact_views(&concat_batches(&self.pieces[0].schema(), &self.pieces)?),
        }
    }
}

/// A bucket that was sorted but not yet copied.
struct Ordered {
    schema: SchemaRef,
    batch_rows: usize,
    pieces: Vec<RecordBatch>,
    places: Vec<(usize, usize)>,
    _reserved: WorkingSet,
}

impl Ordered {
    fn batch(&self, start: usize) -> Result<RecordBatch> {
        let places = &self.places[start..(start + self.batch_rows).min(self.places.len())];
        if self.schema.fields().is_empty() {
            let options = datafusion::arrow::array::RecordBatchOptions::new().with_row_count(Some(places.len()));
            return Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), Vec::new(), &options)?);
        }
        let pieces: Vec<&RecordBatch> = self.pieces.iter().collect();
        let batch = interleave_record_batch(&pieces, places)?;
        Ok(batch.with_schema(Arc::clone(&self.schema))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::store;

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

    #[test]
    fn bucket_ranges_cover_all_keys_once() {
        for num_buckets in [1, 2, 3, 7, 64, 1000] {
            let schema = Arc::new(Schema::empty());
            let (store, owner) = (store(0), Arc::default());
            let (runs, num_tasks) = (Vec::new(), num_buckets);
            let runs =
                Runs { runs, schema, num_tasks, buckets_per_task: 1, sorted_bytes: 0, batch_rows: 1, store, owner };
            let mut next = 0u128;
            for bucket in 0..num_buckets {
                let (low, high) = runs.key_range(bucket);
                assert_eq!(u128::from(low), next, "{num_buckets}");
                next = u128::from(high) + 1;
            }
            assert_eq!(next, 1 << 64, "{num_buckets}");
        }
    }
}
