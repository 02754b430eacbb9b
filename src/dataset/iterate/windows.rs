//! The windows of a pipeline, each as a dataset.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::common::Result;
use futures::TryStreamExt;
use futures::stream::{self, BoxStream, StreamExt};

use super::token::Origin;
use crate::block::Block;
use crate::dataset::Dataset;
use crate::physical::Marked;
use crate::sources::StoredBlocks;
use crate::store::{BlockHandle, NextUse, Owner};

impl Dataset {
    /// The windows of the pipeline that the dataset is, in the store until the last clone of each drops.
    pub(in crate::dataset) async fn windows(&self) -> Result<BoxStream<'static, Result<Self>>> {
        let origin = Origin::of(self, 0, None, None)?;
        let rows = self.marked_rows(0, &origin).await?;
        let (dataset, store, owner) = (self.clone(), Arc::clone(self.context.store()), Arc::new(Owner::default()));
        let put = move |marked: &Marked| -> Result<BlockHandle> {
            let block = Block::new(marked.batch.schema(), vec![marked.batch.clone()]);
            store.put(block, NextUse::Kept, &owner)
        };
        let pending = VecDeque::<Marked>::new();
        let windows = stream::try_unfold((rows.rows, pending, put), move |(mut rows, mut pending, put)| {
            let dataset = dataset.clone();
            async move {
                let mut window = None;
                let mut blocks = Vec::new();
                loop {
                    let marked = match pending.pop_front() {
                        Some(marked) => marked,
                        None => match rows.try_next().await? {
                            Some(marked) => marked,
                            None => break,
                        },
                    };
                    if window.as_ref().is_some_and(|id| *id != marked.mark.id) {
                        pending.push_front(marked);
                        break;
                    }
                    blocks.push(put(&marked)?);
                    window = Some(marked.mark.id);
                }
                let Some(_) = window else { return Ok(None) };
                let blocks = StoredBlocks::new("InputDataBuffer", dataset.schema(), blocks);
                Ok(Some((dataset.of_blocks(blocks)?, (rows, pending, put))))
            }
        });
        Ok(windows.boxed())
    }
}
