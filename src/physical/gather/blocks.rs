//! The blocks of a plan one after the other, for whoever takes blocks rather than rows.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::in_order::blocks_in_order;
use crate::block::Block;
use crate::config::BlockyardOptions;
use crate::physical::memory::block_bytes;
use crate::physical::tasks::{RowBalance, block_batches, block_stream, is_ordered, ungathered};
use crate::store::Owner;

/// The blocks that a stage above would get: in the order of the dataset, where it has one.
pub(crate) fn gather_blocks(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    owner: &Arc<Owner>,
) -> Result<BoxStream<'static, Result<Block>>> {
    let plan = ungathered(plan);
    let (partitions, target) = (plan.output_partitioning().partition_count(), block_bytes(context)?);
    let keeps_order = is_ordered(plan.as_ref()) && BlockyardOptions::from_task(context).preserve_order;
    if partitions == 1 || !keeps_order {
        let blocks = (0..partitions).map(|partition| {
            let blocks = block_stream(plan, partition, Arc::clone(context), target)?;
            Ok(blocks.map_ok(|(_, block)| block).boxed())
        });
        return Ok(stream::select_all(blocks.collect::<Result<Vec<_>>>()?).boxed());
    }
    let (schema, balance) = (plan.schema(), RowBalance::new("gathering blocks", context));
    let blocks = blocks_in_order(plan, context, owner, target, &balance)?;
    let given = Arc::clone(&balance);
    let blocks = blocks.and_then(move |(_, handle)| {
        let (schema, given) = (Arc::clone(&schema), Arc::clone(&given));
        async move {
            let block = Block::new(schema, block_batches(handle).try_collect().await?);
            given.give(block.num_rows());
            Ok(Some(block))
        }
    });
    let ended = stream::once(async move { balance.check().map(|()| None) });
    Ok(blocks.chain(ended).try_filter_map(|block| std::future::ready(Ok(block))).boxed())
}
