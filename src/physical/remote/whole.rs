//! [`WholeRows`].

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::fetched;
use crate::physical::exchange::{StoredBlock, collect_blocks};
use crate::physical::tasks::{block_batches, stream_of};
use crate::store::{NextUse, Owner, QueryPool};

/// The rows of a side of a join that all tasks of a stage have whole. They are made once, when the first asks, and stay
/// in the store.
pub(crate) struct WholeRows {
    plan: Arc<dyn ExecutionPlan>,
    blocks: Blocks,
}

type Blocks = Shared<BoxFuture<'static, Result<Arc<[StoredBlock]>, Arc<DataFusionError>>>>;

impl fmt::Debug for WholeRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeRows").finish_non_exhaustive()
    }
}

impl WholeRows {
    /// Those of `plan`, which has run nothing yet.
    pub(crate) fn of(plan: Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> Self {
        let (runs, context) = (Arc::clone(&plan), Arc::clone(context));
        let blocks = async move {
            let owner = Arc::new(Owner::default());
            owner.describe(QueryPool::query_of(&context), || "JoinLeft".to_owned());
            let blocks = collect_blocks(&runs, &context, NextUse::Kept, &owner).await;
            blocks.map(Arc::from).map_err(Arc::new)
        };
        Self { plan, blocks: blocks.boxed().shared() }
    }

    /// Whether they could not be made.
    pub(crate) fn have_failed(&self) -> bool {
        self.blocks.peek().is_some_and(Result::is_err)
    }

    /// A plan that gives them.
    pub(crate) fn plan(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let (schema, blocks) = (self.plan.schema(), self.blocks.clone());
        let rows = move || {
            let blocks = blocks.clone();
            let rows = stream::once(async move {
                let blocks = blocks.await.map_err(DataFusionError::Shared)?;
                let handles: Vec<_> = blocks.iter().map(|block| block.handle.clone()).collect();
                Ok::<_, DataFusionError>(stream::iter(handles).flat_map(block_batches))
            });
            stream_of(Arc::clone(&schema), rows.try_flatten().boxed())
        };
        fetched(self.plan.schema(), Arc::new(rows))
    }
}
