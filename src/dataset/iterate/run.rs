//! Runs of a dataset whose rows tell where they stand.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, stream};

use super::token::Origin;
use crate::config::BlockyardOptions;
use crate::dataset::Dataset;
use crate::dataset::consume::{Attempt, Started, is_kept_in_vain};
use crate::dataset::repeatable::repeatable;
use crate::physical::{MarkedStream, begun_at, begun_rows};

/// Rows with where they stand, of a plan that runs.
pub(super) struct MarkedRows {
    pub(super) schema: SchemaRef,
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) rows: MarkedStream,
    /// Bytes of a block of them.
    pub(super) block_bytes: usize,
}

impl Dataset {
    /// The rows of an epoch from a place on, with where they stand.
    pub(super) async fn marked_rows(&self, epoch: u64, origin: &Origin) -> Result<MarkedRows> {
        let mut attempt = self.attempt_of(epoch)?;
        attempt.state = repeatable(attempt.state, Some(origin.cpus()));
        let mut first = self.marked_once(&attempt, origin).await?;
        match first.rows.next().await {
            Some(Err(e)) if is_kept_in_vain(&e) => {
                drop(first);
                self.marked_once(&self.again_with_spilling(attempt), origin).await
            }
            head => Ok(MarkedRows { rows: stream::iter(head).chain(first.rows).boxed(), ..first }),
        }
    }

    async fn marked_once(&self, attempt: &Attempt, origin: &Origin) -> Result<MarkedRows> {
        let begin = |plan: &Arc<dyn ExecutionPlan>| {
            origin.check(plan)?;
            begun_at(plan, origin.place())
        };
        let started = self.start_at(attempt, begin).await?;
        let Started { planned: plan, plan: begun, context, execution, mut watch, admission } = started;
        let rows = begun_rows(&plan, &begun, &context, execution.result_owner(), origin.place(), None);
        watch.ended_if_failed(&rows);
        // The context and the admission are held until the end.
        let rows = watch.over(rows?, (admission, context), |marked| marked.batch.num_rows());
        let config = attempt.state.config();
        let block_bytes = BlockyardOptions::from_config(config.options()).block_bytes(config.target_partitions());
        Ok(MarkedRows { schema: plan.schema(), plan, rows: rows.fuse().boxed(), block_bytes })
    }
}
