//! The blocks of a dataset, one after the other.

use datafusion::common::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::block::Block;
use crate::dataset::Dataset;
use crate::dataset::consume::{Attempt, Started, is_kept_in_vain};
use crate::physical::gather_blocks;

impl Dataset {
    /// Streams the blocks, in order: those that a file each would have, or [`Dataset::internal_blocks`] tells of, as
    /// lists of batches. Nothing is put together or copied.
    ///
    /// # Errors
    ///
    /// As [`Dataset::stream`].
    pub async fn iter_blocks(&self) -> Result<BoxStream<'static, Result<Block>>> {
        let attempt = self.attempt()?;
        let mut first = self.blocks_once(&attempt).await?;
        match first.next().await {
            Some(Err(e)) if is_kept_in_vain(&e) => {
                drop(first);
                self.blocks_once(&self.again_with_spilling(attempt)).await
            }
            head => Ok(stream::iter(head).chain(first).boxed()),
        }
    }

    async fn blocks_once(&self, attempt: &Attempt) -> Result<BoxStream<'static, Result<Block>>> {
        let Started { plan, context, execution, mut watch, admission, .. } = self.start(attempt).await?;
        let blocks = gather_blocks(&plan, &context, execution.result_owner());
        watch.ended_if_failed(&blocks);
        Ok(watch.over(blocks?.fuse(), (admission, context), Block::num_rows))
    }
}
