//! Runs all partitions of a plan and keeps their blocks.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::TryStreamExt;

use crate::block::TaskId;
use crate::physical::memory::block_bytes;
use crate::physical::tasks::block_stream;
use crate::physical::tasks::ungathered;
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// A block and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct StoredBlock {
    /// Its place in the order of the dataset.
    pub(crate) id: TaskId,
    /// The block.
    pub(crate) handle: BlockHandle,
}

/// All blocks of a plan, in the order of the dataset. Blocks are kept in the store on behalf of `owner`.
pub(crate) async fn collect_blocks(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    next_use: NextUse,
    owner: &Arc<Owner>,
) -> Result<Vec<StoredBlock>> {
    let plan = ungathered(plan);
    let store = BlockStore::of_task(context)?;
    let target = block_bytes(context)?;
    let mut drivers = Vec::new();
    for partition in 0..plan.output_partitioning().partition_count() {
        let mut blocks = block_stream(plan, partition, Arc::clone(context), target)?;
        let (store, owner) = (Arc::clone(&store), Arc::clone(owner));
        drivers.push(async move {
            let mut stored = Vec::new();
            while let Some((id, block)) = blocks.try_next().await? {
                stored.push(StoredBlock { id, handle: store.put(block, next_use, &owner)? });
            }
            Ok(stored)
        });
    }
    let mut blocks: Vec<_> = Drivers::start(drivers).finish().await?.into_iter().flatten().collect();
    blocks.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(blocks)
}
