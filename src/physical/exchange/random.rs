//! A uniform random permutation of all rows, out of core.
//!
//! Every row draws a 64-bit key from the seed, its task and its row number, and the output is sorted by key. So the order
//! depends on nothing else: not on the number of buckets, threads or the memory limit. Keys are the codes of [`Runs`].

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::interleave_record_batch;
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::runs::{Coding, Group, Runs, equal_range, inside};
use crate::config::BlockyardOptions;
use crate::physical::memory::query_memory;
use crate::physical::stage::StageMetrics;
use crate::runtime::on_io_thread;
use crate::store::WorkingSet;

/// Rows that an output task should have at least, so that small inputs have few.
const TASK_ROWS: usize = 8192;
/// A bucket that is being sorted has about this many arrays at most: each takes some hundred bytes beside its values.
const MANY_ARRAYS: usize = 1 << 14;
/// What is sorted at once has at least so many bytes, and at most: rows are copied in random order, which is slow where they are far apart.
const LEAST_SORTED_BYTES: usize = 1 << 20;
const MOST_SORTED_BYTES: usize = 64 << 20;
/// The pieces of a bucket are put together to about this many.
const GROUPS: usize = 8;

/// All rows of a map side, how many tasks read them, and in how many buckets each.
#[derive(Debug)]
pub(super) struct Shuffled {
    runs: Runs,
    num_tasks: usize,
    buckets_per_task: usize,
    /// What a bucket has, about.
    sorted_bytes: usize,
}

/// The map side: runs `input`'s tasks and routes their rows.
pub(super) async fn map_side(
    input: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    stage: &StageMetrics,
    seed: u64,
    num_blocks: Option<usize>,
) -> Result<Shuffled> {
    let options = BlockyardOptions::from_task(context);
    let runs = Runs::collect(input, context, stage, Coding::Random { seed }, None).await?;
    let (bytes, rows) = (runs.bytes, runs.rows);
    // Output tasks follow from the data alone: their ids give the randomness above. Powers of two keep the small
    // differences that the limit makes to the bytes (offsets of more or fewer pieces) from changing their number.
    let by_size = (bytes / options.target_shuffle_max_block_size.bound()).next_power_of_two();
    let by_rows = (rows / TASK_ROWS).min(2 * options.num_cpus);
    let num_tasks = num_blocks.unwrap_or_else(|| by_size.max(by_rows)).max(1);
    // What is sorted at once follows from the limit.
    let partitions = input.output_partitioning().partition_count();
    let sorted_bytes = (query_memory(context)? / (8 * partitions)).clamp(LEAST_SORTED_BYTES, MOST_SORTED_BYTES);
    // A power of two as well: where the number of tasks is one, no piece then belongs to two buckets.
    let buckets_per_task = (bytes / num_tasks).div_ceil(sorted_bytes).next_power_of_two();
    Ok(Shuffled { runs, num_tasks, buckets_per_task, sorted_bytes })
}

impl Shuffled {
    /// Number of output tasks, at least one.
    pub(super) fn num_tasks(&self) -> usize {
        self.num_tasks
    }

    /// The keys of a bucket, both ends included.
    fn key_range(&self, bucket: usize) -> (u64, u64) {
        let range = equal_range(bucket, self.num_tasks * self.buckets_per_task);
        (*range.start(), *range.end())
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
        let reserved = self.runs.store.working_set(&self.runs.owner, 2 * self.sorted_bytes)?;
        let columns: Vec<usize> = (0..self.runs.schema.fields().len()).collect();
        // Pieces are put together on the way: a few large ones take less memory beside their values, and less time.
        let most = (MANY_ARRAYS / 2 / columns.len().max(1)).max(1);
        let (mut pieces, mut group) = (Vec::new(), Group::default());
        let mut places: Vec<(u64, u32, u32)> = Vec::new();
        for run in &self.runs.runs {
            for piece in self.runs.pieces(run, low, high) {
                let piece = inside(piece?, low, high)?;
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
        let (schema, batch_rows) = (Arc::clone(&self.runs.schema), self.runs.batch_rows);
        Ok(Ordered { schema, batch_rows, pieces, places, _reserved: reserved })
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
    use datafusion::arrow::datatypes::Schema;

    #[test]
    fn bucket_ranges_cover_all_keys_once() {
        for num_buckets in [1, 2, 3, 7, 64, 1000] {
            let schema = Arc::new(Schema::empty());
            let (store, owner) = (store(0), Arc::default());
            let runs = Runs {
                runs: Vec::new(),
                schema,
                bytes: 0,
                rows: 0,
                plenty: true,
                bins: Vec::new(),
                batch_rows: 1,
                store,
                owner,
            };
            let runs = Shuffled { runs, num_tasks: num_buckets, buckets_per_task: 1, sorted_bytes: 0 };
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
