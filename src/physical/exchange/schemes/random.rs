//! A uniform random permutation of all rows, out of core.
//!
//! Every row draws a 64-bit key from the seed, its task and its row number, and the output is sorted by key. So the
//! order depends on nothing else: not on the number of buckets, threads or the memory limit. Keys are the codes of
//! [`Runs`].

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use super::Scheme;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::exchange::buckets::{Batches, Buckets, MapInput};
use crate::physical::exchange::cuts::{Cut, equal_parts, equal_range};
use crate::physical::exchange::distributed::{
    Distributed, Extent, Fetched, Fetching, KeptBy, RowRange, TaskRows, TaskSizes,
};
use crate::physical::exchange::ordered::{Ordered, RowOrder, SharedReads};
use crate::physical::exchange::router::KeyEncoding;
use crate::physical::exchange::runs::Runs;
use crate::physical::exchange::seen_keys::Wanted;
use crate::physical::memory::stage_memory;
use crate::physical::operator::TaskIdentity;
use crate::runtime::on_io_thread;

/// Rows that an output task should have at least, so that small inputs have few.
const TASK_ROWS: usize = 8192;
/// What is sorted at once has at least so many bytes, and at most: rows are copied in random order, which is slow where
/// they are far apart.
const MIN_SORTED_BYTES: usize = 1 << 20;
const MAX_SORTED_BYTES: usize = 64 << 20;

/// All rows of a map side, how many tasks read them, and in how many buckets each.
#[derive(Debug)]
struct Shuffled {
    runs: Arc<Runs>,
    num_tasks: usize,
    /// The one of them that is read first: rows of those before are not there.
    first_task: usize,
    buckets_per_task: usize,
    /// What a bucket has, about.
    sorted_bytes: usize,
    /// Tasks that are so small that several are one bucket.
    together: SharedReads,
}

/// A uniform random permutation of all rows.
#[derive(Debug)]
pub(crate) struct RandomScheme {
    /// Together with a row's place in the input it gives the row's place in the output.
    pub(crate) seed: u64,
    /// Number of output blocks, or as many as the sizes ask for.
    pub(crate) num_blocks: Option<usize>,
}

impl fmt::Display for RandomScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.num_blocks {
            None => write!(f, "random(seed={})", self.seed),
            Some(n) => write!(f, "random(seed={}, num_blocks={n})", self.seed),
        }
    }
}

#[async_trait]
impl Scheme for RandomScheme {
    fn map_name(&self) -> &'static str {
        "RandomShuffleMap"
    }

    fn reduce_name(&self) -> &'static str {
        "RandomShuffleReduce"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        let shuffled = shuffle(&input, self).await?;
        input.balance.take(shuffled.runs.num_rows());
        Ok(Arc::new(shuffled))
    }

    fn identity<'a>(&self, _input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        // The number of others follows from bytes, of which a run has a few more or less.
        TaskIdentity::Own { is_whole: self.num_blocks.is_some() }
    }

    fn begins_at_tasks(&self) -> bool {
        true
    }

    fn planned_blocks(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<usize> {
        self.num_blocks
    }

    fn distributed(&self) -> Option<&dyn Distributed> {
        Some(self)
    }
}

impl RandomScheme {
    /// Output tasks follow from the data alone: their ids give the randomness above. Powers of two keep the small
    /// differences that the limit makes to the bytes (offsets of more or fewer pieces) from changing their number.
    fn num_tasks(&self, bytes: usize, rows: usize, options: &BlockyardOptions) -> usize {
        let by_size = (bytes / options.target_shuffle_max_block_size.bound()).next_power_of_two();
        let by_rows = (rows / TASK_ROWS).min(2 * options.num_cpus);
        self.num_blocks.unwrap_or_else(|| by_size.max(by_rows)).max(1)
    }
}

impl Distributed for RandomScheme {
    fn kept_by(&self) -> KeptBy {
        KeptBy::Codes(KeyEncoding::Random { seed: self.seed })
    }

    fn with_codes(&self) -> bool {
        true
    }

    fn tasks(&self, units: &[&Extent], _sizes: TaskSizes, context: &TaskContext) -> Result<Vec<TaskRows>> {
        let bytes = units.iter().map(|unit| unit.bytes).sum();
        let rows = units.iter().map(|unit| unit.rows as usize).sum();
        let num_tasks = self.num_tasks(bytes, rows, &BlockyardOptions::from_task(context));
        let task = |task| {
            let codes = equal_range(task, num_tasks);
            TaskRows { ranges: vec![RowRange::Codes(*codes.start(), *codes.end())], bytes: bytes / num_tasks }
        };
        Ok((0..num_tasks).map(task).collect())
    }

    fn rows(&self, _id: TaskId, rows: TaskRows, fetching: Fetching) -> Result<Batches> {
        let threads = fetching.context.session_config().target_partitions();
        let parts = rows.bytes.div_ceil(sorted_bytes(&fetching.context, threads)?).max(1);
        let (bytes, batch_rows) = (rows.bytes / parts, fetching.context.session_config().batch_size());
        let parts = rows.ranges.into_iter().flat_map(move |range| match range {
            RowRange::Codes(low, high) => parts_of(low..=high, parts),
            RowRange::Places(..) => Vec::new(),
        });
        let ordered = stream::iter(parts).then(move |codes| {
            let fetching = fetching.clone();
            async move {
                let fetched = fetching.all(RowRange::Codes(*codes.start(), *codes.end()), bytes, 2).await?;
                let Fetched { batches, reserved } = fetched;
                on_io_thread(move || Ordered::of(&batches, &fetching.schema, batch_rows, reserved)).await
            }
        });
        Ok(ordered.map_ok(|ordered| stream::iter(Arc::new(ordered).batches(0))).try_flatten().boxed())
    }
}

/// A range of codes in so many of equal width, or fewer.
fn parts_of(codes: RangeInclusive<u64>, parts: usize) -> Vec<RangeInclusive<u64>> {
    let parts = equal_parts(&Cut { range: codes, bytes: parts }, 1);
    parts.into_iter().map(|part| part.range).collect()
}

#[async_trait]
impl Buckets for Shuffled {
    async fn read(self: Arc<Self>, index: usize) -> Result<Option<(TaskId, Batches)>> {
        Ok((index < self.num_tasks).then(|| (TaskId::root(index), self.rows_of(index))))
    }

    fn ranges_of_codes(&self) -> Option<usize> {
        Some(self.num_tasks)
    }
}

/// What `threads` sort at once each.
fn sorted_bytes(context: &TaskContext, threads: usize) -> Result<usize> {
    Ok((stage_memory(context)? / (8 * threads)).clamp(MIN_SORTED_BYTES, MAX_SORTED_BYTES))
}

/// The map side: runs the tasks of the input and routes their rows.
async fn shuffle(input: &MapInput, scheme: &RandomScheme) -> Result<Shuffled> {
    let MapInput { plan, context, stage, .. } = input;
    let options = BlockyardOptions::from_task(context);
    let coding = KeyEncoding::Random { seed: scheme.seed };
    let runs = Runs::collect(plan, context, stage, coding, None, Wanted::from(input.first_code())).await?;
    let (bytes, rows, num_tasks) = (runs.bytes, runs.rows, input.begin.map(|first| first.of));
    let num_tasks = num_tasks.unwrap_or_else(|| scheme.num_tasks(bytes, rows, &options));
    // What is sorted at once follows from the limit.
    let partitions = plan.output_partitioning().partition_count();
    let sorted_bytes = sorted_bytes(context, partitions)?;
    // A power of two as well: where the number of tasks is one, no piece then belongs to two buckets.
    let first_task = input.begin.map_or(0, |first| first.task);
    let wanted_tasks = num_tasks.saturating_sub(first_task).max(1);
    let buckets_per_task = (bytes / wanted_tasks).div_ceil(sorted_bytes).next_power_of_two();
    let together = SharedReads::new(wanted_tasks, bytes, sorted_bytes / 2, partitions);
    Ok(Shuffled { runs: Arc::new(runs), num_tasks, first_task, buckets_per_task, sorted_bytes, together })
}

impl Shuffled {
    /// The keys of a bucket.
    fn key_range(&self, bucket: usize) -> RangeInclusive<u64> {
        equal_range(bucket, self.num_tasks * self.buckets_per_task)
    }

    /// The rows of an output task in their final order, sorted bucket by bucket.
    fn rows_of(self: Arc<Self>, task: usize) -> Batches {
        if self.together.is_of_use() {
            let ordered = async move {
                let range = |task: usize| self.key_range(self.first_task + task);
                self.together.rows_of(task - self.first_task, &self.runs, range, RowOrder::Codes).await
            };
            return stream::once(ordered)
                .map_ok(|(ordered, task)| stream::iter(ordered.batches(task)))
                .try_flatten()
                .boxed();
        }
        let first = task * self.buckets_per_task;
        let buckets = stream::iter(first..first + self.buckets_per_task);
        buckets
            .then(move |bucket| {
                let runs = Arc::clone(&self);
                on_io_thread(move || runs.order(bucket))
            })
            .map_ok(|ordered| stream::iter(Arc::new(ordered).batches(0)))
            .try_flatten()
            .boxed()
    }

    fn order(&self, bucket: usize) -> Result<Ordered> {
        Ordered::read(&self.runs, &[self.key_range(bucket)], RowOrder::Codes, self.sorted_bytes, &|| true)
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
                left_out: 0,
                sum_of_codes: 0,
                seen: None,
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
            let together = SharedReads::new(num_buckets, 0, 0, 1);
            let runs = Arc::new(runs);
            let (num_tasks, first_task, buckets_per_task) = (num_buckets, 0, 1);
            let runs = Shuffled { runs, num_tasks, first_task, buckets_per_task, sorted_bytes: 0, together };
            let mut next = 0u128;
            for bucket in 0..num_buckets {
                let range = runs.key_range(bucket);
                assert_eq!(u128::from(*range.start()), next, "{num_buckets}");
                next = u128::from(*range.end()) + 1;
            }
            assert_eq!(next, 1 << 64, "{num_buckets}");
        }
    }
}
