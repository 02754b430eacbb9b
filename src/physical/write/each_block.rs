//! The blocks of a plan on their way out: several at once, each in the memory that it takes, and again after an error
//! that may pass.

use std::fmt::Display;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};

use crate::block::{Block, TaskId};
use crate::config::BlockyardOptions;
use crate::error::ErrorContext;
use crate::physical::tasks::{FailureLog, Retries, RowBalance, block_stream, pause, ungathered};
use crate::runtime::Drivers;
use crate::store::{BlockStore, Owner};

/// Calls `write` for each block of about `target_bytes` of `input`, which takes `beside` bytes beside the block. What
/// it returned of all of them comes back, in no order.
pub(super) async fn each_block<T, F>(
    input: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    target_bytes: usize,
    owner: &Arc<Owner>,
    balance: &Arc<RowBalance>,
    beside: impl Fn(&Block) -> usize + Clone + Send + 'static,
    write: impl Fn(TaskId, Block) -> F + Clone + Send + 'static,
) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let input = ungathered(input);
    let partitions = 0..input.output_partitioning().partition_count();
    let of_partition = |partition| {
        let (beside, write) = (beside.clone(), write.clone());
        of_partition((input, partition), context, target_bytes, owner, balance, beside, write)
    };
    let drivers = partitions.map(of_partition).collect::<Result<Vec<_>>>()?;
    Ok(Drivers::start(drivers).finish().await?.into_iter().flatten().collect())
}

/// The same of one partition of a plan.
pub(super) fn of_partition<T, F>(
    (input, partition): (&Arc<dyn ExecutionPlan>, usize),
    context: &Arc<TaskContext>,
    target_bytes: usize,
    owner: &Arc<Owner>,
    balance: &Arc<RowBalance>,
    beside: impl Fn(&Block) -> usize + Send + 'static,
    write: impl Fn(TaskId, Block) -> F + Send + 'static,
) -> Result<BoxFuture<'static, Result<Vec<T>>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let store = BlockStore::of_task(context)?;
    let mut blocks = block_stream(input, partition, Arc::clone(context), target_bytes)?;
    let (owner, balance) = (Arc::clone(owner), Arc::clone(balance));
    let all = async move {
        let mut written = Vec::new();
        while let Some((id, block)) = blocks.try_next().await? {
            balance.take(block.metadata().num_rows);
            let _reserved = store.working_set(&owner, block.metadata().size_bytes + beside(&block))?;
            written.push(write(id, block).await?);
        }
        Ok(written)
    };
    Ok(all.boxed())
}

/// Tries of writes. Clones count together.
#[derive(Debug, Clone)]
pub(super) struct Tries {
    retries: Retries,
    log: Arc<FailureLog>,
}

impl Tries {
    pub(super) fn of(context: &TaskContext) -> Self {
        Self { retries: Retries::of_io(&BlockyardOptions::from_task(context)), log: Arc::default() }
    }

    /// Writes something as often as its errors are worth it.
    pub(super) async fn run<T, F>(&self, id: &TaskId, what: impl Display, write: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut attempt = 0;
        loop {
            match write().await {
                Err(e) if self.retries.again(&e, attempt) => {
                    self.log.retried(&e);
                    pause(attempt, id.hash()).await;
                    attempt += 1;
                }
                result => return result.while_doing(|| format!("writing {what}")),
            }
        }
    }

    /// Tells how often something was tried again, if it was.
    pub(super) fn note(&self, metrics: &ExecutionPlanMetricsSet) {
        if self.log.retries() > 0 {
            MetricBuilder::new(metrics).global_counter("retries").add(self.log.retries());
        }
    }
}
