//! Between the two sides of an exchange: what the map side gets, and what the reduce side reads.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::cuts::equal_range;
use super::slices::Slice;
use super::{StoredBlock, collect_blocks};
use crate::block::TaskId;
use crate::physical::StageMetrics;
use crate::physical::tasks::RowBalance;
use crate::physical::tasks::block_rows;
use crate::physical::tasks::steady_parts;
use crate::physical::tasks::ungathered;
use crate::store::NextUse;

/// The task with which an exchange begins that goes on where another one was, of tasks that are as many equal ranges of
/// codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstTask {
    /// Its number.
    pub(super) task: usize,
    /// How many tasks there are with those before it.
    pub(super) of: usize,
}

impl FirstTask {
    /// The lowest code of its rows.
    pub(super) fn code(self) -> u64 {
        *equal_range(self.task, self.of).start()
    }
}

/// Rows on their way.
pub(super) type Batches = BoxStream<'static, Result<RecordBatch>>;

/// What a map side works on.
#[derive(Debug)]
pub(crate) struct MapInput {
    /// Whose tasks it runs.
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) context: Arc<TaskContext>,
    /// Where it is counted what they do.
    pub(super) stage: StageMetrics,
    /// Where the rows that it takes are counted.
    pub(super) balance: Arc<RowBalance>,
    /// Rows of tasks before this one were given in another execution.
    pub(super) begin: Option<FirstTask>,
}

impl MapInput {
    /// The lowest code of the rows that are wanted.
    pub(super) fn first_code(&self) -> u64 {
        self.begin.map_or(0, FirstTask::code)
    }

    /// With how many parts the ids of blocks of the plan, whose partitions are taken one by one, say which rows they
    /// are of. Without an order each block is for itself.
    pub(super) fn steady_parts(&self) -> usize {
        steady_parts(ungathered(&self.plan)).unwrap_or(usize::MAX)
    }

    /// All blocks of the plan, in the order of the dataset.
    pub(super) async fn blocks(&self) -> Result<Vec<StoredBlock>> {
        let blocks = collect_blocks(&self.plan, &self.context, NextUse::AfterInput, self.stage.owner()).await?;
        self.balance.take(blocks.iter().map(|block| block.handle.metadata().num_rows).sum());
        Ok(blocks)
    }
}

/// What a map side has made of its rows: they are read bucket by bucket, each by one task.
#[async_trait]
pub(crate) trait Buckets: Send + Sync {
    /// The task of the bucket that is asked for as number `index`, and its rows. `None` behind the last.
    async fn read(self: Arc<Self>, index: usize) -> Result<Option<(TaskId, Batches)>>;

    /// How many tasks there are, where these are as many equal ranges of codes.
    fn ranges_of_codes(&self) -> Option<usize> {
        None
    }
}

/// Buckets that are there. Each is taken by whoever reads it, so that its blocks are freed as it goes.
pub(super) struct SliceBuckets(Vec<Mutex<Vec<Slice>>>);

impl SliceBuckets {
    pub(super) fn new(buckets: Vec<Vec<Slice>>) -> Self {
        Self(buckets.into_iter().map(Mutex::new).collect())
    }
}

#[async_trait]
impl Buckets for SliceBuckets {
    async fn read(self: Arc<Self>, index: usize) -> Result<Option<(TaskId, Batches)>> {
        let bucket = self.0.get(index).map(|bucket| std::mem::take(&mut *bucket.lock()));
        Ok(bucket.map(|bucket| (TaskId::root(index), rows_of(bucket))))
    }
}

/// Buckets that are made while the input comes.
#[async_trait]
pub(super) trait NextBucket: Send {
    /// The number of the next bucket, and its rows.
    async fn next(&mut self) -> Result<Option<(usize, Vec<Slice>)>>;
}

/// Such buckets, for several readers.
pub(super) struct StreamedBuckets<T>(AsyncMutex<T>);

impl<T> StreamedBuckets<T> {
    pub(super) fn new(next: T) -> Self {
        Self(AsyncMutex::new(next))
    }
}

#[async_trait]
impl<T: NextBucket> Buckets for StreamedBuckets<T> {
    async fn read(self: Arc<Self>, _index: usize) -> Result<Option<(TaskId, Batches)>> {
        let next = self.0.lock().await.next().await?;
        Ok(next.map(|(number, bucket)| (TaskId::root(number), rows_of(bucket))))
    }
}

/// The rows of a bucket.
fn rows_of(bucket: Vec<Slice>) -> Batches {
    stream::iter(bucket)
        .map(|slice| block_rows(slice.handle, slice.offset..slice.offset + slice.length))
        .flatten()
        .boxed()
}
