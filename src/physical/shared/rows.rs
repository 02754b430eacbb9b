//! [`SharedRows`]: the rows of a plan, for several readers.
//!
//! ```text
//!               the first to be asked starts it
//! plan ──all partitions──> blocks in the store ──partition 0──> reader 1, reader 2, ..
//!                                              ──partition 1──> reader 1, reader 2, ..
//! ```
//!
//! No row is given before all have come: a reader that others wait for, as the two sides of a join do, would keep the
//! plan from going on otherwise. The store spills what does not fit. A partition goes when all readers have begun to
//! read it, block by block.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use crate::physical::memory::block_bytes;
use crate::physical::tasks::{Executions, RowBalance, block_batches, block_stream, stream_of};
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner, QueryPool};

/// The rows of a plan, which run once per execution of the query.
#[derive(Debug)]
pub(crate) struct SharedRows {
    plan: Arc<dyn ExecutionPlan>,
    readers: AtomicUsize,
    executions: Executions<Run>,
}

/// One execution.
#[derive(Default)]
struct Run(Mutex<Running>);

#[derive(Default)]
struct Running {
    progress: Progress,
    /// The partitions of readers that have gone before there was anything to read.
    gone: Vec<usize>,
}

type Collecting = BoxFuture<'static, Result<Arc<Stored>, Arc<DataFusionError>>>;

#[derive(Default)]
enum Progress {
    #[default]
    NotStarted,
    /// As long as a reader waits. If all have gone, the next one starts anew.
    Started(WeakShared<Collecting>),
    Stored(Arc<Stored>),
}

/// All rows, by partition.
struct Stored(Vec<Partition>);

struct Partition {
    rows: usize,
    blocks: Mutex<Vec<BlockHandle>>,
    /// Readers that have not come.
    to_come: AtomicUsize,
}

impl SharedRows {
    /// The rows of `plan`, which nobody reads yet.
    pub(crate) fn of(plan: Arc<dyn ExecutionPlan>) -> Self {
        Self { plan, readers: AtomicUsize::new(0), executions: Executions::default() }
    }

    pub(super) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// The number of one more reader, from 0 on. All are there before the first of them reads.
    pub(super) fn add_reader(&self) -> usize {
        self.readers.fetch_add(1, Relaxed)
    }

    /// The rows of a partition for a reader.
    pub(super) fn read(
        self: &Arc<Self>,
        reader: usize,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.plan.output_partitioning().partition_count();
        if partition >= partitions {
            return internal_err!("a shared plan has {partitions} partitions, not number {partition}");
        }
        let run = self.executions.join(reader * partitions + partition, context);
        let balance = RowBalance::new("SharedExec", context);
        let (taken, rows, context) = (Arc::clone(&balance), Arc::clone(self), Arc::clone(context));
        let mut waiting = Waiting { run, partition, came: false };
        let batches = stream::once(async move {
            let partition = &rows.stored(&waiting.run, &context).await?.0[partition];
            taken.take(partition.rows);
            let blocks = stream::iter(waiting.takes(partition));
            Ok::<_, DataFusionError>(blocks.flat_map(block_batches))
        });
        let read = balance.giving(stream_of(self.plan.schema(), batches.try_flatten().boxed()));
        balance.all_begun()?;
        Ok(read)
    }

    /// All rows, when all have come.
    async fn stored(&self, run: &Run, context: &Arc<TaskContext>) -> Result<Arc<Stored>> {
        let collecting = {
            let progress = &mut run.0.lock().progress;
            let started = match &*progress {
                Progress::Stored(stored) => return Ok(Arc::clone(stored)),
                Progress::Started(collecting) => collecting.upgrade(),
                Progress::NotStarted => None,
            };
            match started {
                Some(collecting) => collecting,
                None => {
                    // What has run of it keeps what it was in the middle of.
                    let plan = match progress {
                        Progress::NotStarted => Arc::clone(&self.plan),
                        _ => reset_plan_states(Arc::clone(&self.plan))?,
                    };
                    let collecting = self.collected(plan, Arc::clone(context));
                    // It cannot have ended before it is polled.
                    *progress = collecting.downgrade().map_or(Progress::NotStarted, Progress::Started);
                    collecting
                }
            }
        };
        let stored = collecting.await.map_err(DataFusionError::Shared)?;
        let mut running = run.0.lock();
        running.progress = Progress::Stored(Arc::clone(&stored));
        // The first who is here tells of all who are not.
        for partition in std::mem::take(&mut running.gone) {
            let _not_read = stored.0[partition].blocks_of_reader();
        }
        Ok(stored)
    }

    fn collected(&self, plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> Shared<Collecting> {
        let readers = self.readers.load(Relaxed);
        async move { collect(&plan, &context, readers).await.map(Arc::new).map_err(Arc::new) }.boxed().shared()
    }
}

/// Runs all partitions and stores what they give, for so many readers.
async fn collect(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>, readers: usize) -> Result<Stored> {
    let (store, bytes) = (BlockStore::of_task(context)?, block_bytes(context)?);
    let owner = Arc::new(Owner::default());
    owner.describe(QueryPool::query_of(context), || "Shared".to_owned());
    let mut drivers = Vec::new();
    for number in 0..plan.output_partitioning().partition_count() {
        let mut made = block_stream(plan, number, Arc::clone(context), bytes)?;
        let (store, owner) = (Arc::clone(&store), Arc::clone(&owner));
        drivers.push(async move {
            let (mut rows, mut blocks) = (0, Vec::new());
            while let Some((_, block)) = made.try_next().await? {
                rows += block.num_rows();
                blocks.push(store.put(block, NextUse::AfterInput, &owner)?);
            }
            Ok((number, Partition { rows, blocks: Mutex::new(blocks), to_come: AtomicUsize::new(readers) }))
        });
    }
    let mut partitions = Drivers::start(drivers).finish().await?;
    partitions.sort_by_key(|(number, _)| *number);
    Ok(Stored(partitions.into_iter().map(|(_, partition)| partition).collect()))
}

/// A reader that has taken nothing yet. One that goes away before, as where the other side of a join has no rows,
/// leaves its blocks to the others.
struct Waiting {
    run: Arc<Run>,
    partition: usize,
    came: bool,
}

impl Waiting {
    /// Its blocks.
    fn takes(&mut self, partition: &Partition) -> Vec<BlockHandle> {
        self.came = true;
        partition.blocks_of_reader()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.came {
            return;
        }
        let mut running = self.run.0.lock();
        let stored = match &running.progress {
            Progress::Stored(stored) => Some(Arc::clone(stored)),
            _ => None,
        };
        match stored {
            Some(stored) => {
                let _not_read = stored.0[self.partition].blocks_of_reader();
            }
            None => running.gone.push(self.partition),
        }
    }
}

impl Partition {
    /// Its blocks for one reader. The last one takes them, and each goes when it has been read.
    fn blocks_of_reader(&self) -> Vec<BlockHandle> {
        let mut blocks = self.blocks.lock();
        match self.to_come.fetch_sub(1, Relaxed) {
            1 => std::mem::take(&mut *blocks),
            _ => blocks.clone(),
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, RecordBatch};
    use datafusion::physical_expr::Partitioning;
    use datafusion::physical_plan::repartition::RepartitionExec;
    use datafusion::physical_plan::test::TestMemoryExec;
    use futures::poll;

    use super::*;
    use crate::DataContext;

    /// DataFusion's repartitioning gives each of its partitions once.
    #[tokio::test]
    async fn rows_come_anew_when_all_readers_have_gone_before_any_came() {
        let rows = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from_iter_values(0..100)) as _)]).unwrap();
        let read = TestMemoryExec::try_new_exec(&[vec![rows.clone()]], rows.schema(), None).unwrap();
        let dealt = RepartitionExec::try_new(read, Partitioning::RoundRobinBatch(2)).unwrap();
        let shared = Arc::new(SharedRows::of(Arc::new(dealt)));
        let (first, second) = (shared.add_reader(), shared.add_reader());
        let context = DataContext::new().unwrap().session().task_ctx();
        for partition in [0, 1] {
            let mut gone = shared.read(first, partition, &context).unwrap();
            assert!(poll!(gone.next()).is_pending(), "it waits for all rows");
        }
        let mut found = 0;
        for partition in [0, 1] {
            let read = shared.read(second, partition, &context).unwrap();
            found +=
                read.map_ok(|batch| batch.num_rows()).try_fold(0, |sum, n| async move { Ok(sum + n) }).await.unwrap();
        }
        assert_eq!(found, 100);
    }
}
