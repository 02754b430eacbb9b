//! Runs of consecutive rows, cut to a size while the input comes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::EmissionType;
use futures::{StreamExt, TryStreamExt};

use super::Scheme;
use crate::physical::exchange::buckets::{Buckets, MapInput, StreamedBuckets};
use crate::physical::exchange::cutter::{BlockSize, Cutter};
use crate::physical::gather::{PIECE_BYTES, blocks_in_order};
use crate::physical::memory::block_bytes;
use crate::physical::operator::TaskIdentity;
use crate::physical::tasks::steady_parts;

/// Blocks of a size.
#[derive(Debug)]
pub(crate) struct SizeScheme(pub(crate) BlockSize);

impl fmt::Display for SizeScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            BlockSize::Rows { rows, strict } => write!(f, "sized(rows={rows}, strict={strict})"),
            BlockSize::Bytes(bytes) => write!(f, "sized(bytes={bytes})"),
            BlockSize::Parts { num_blocks, total_rows } => {
                write!(f, "sized(num_blocks={num_blocks}, total_rows={total_rows})")
            }
        }
    }
}

#[async_trait]
impl Scheme for SizeScheme {
    fn map_name(&self) -> &'static str {
        "StreamingRepartitionMap"
    }

    fn reduce_name(&self) -> &'static str {
        "StreamingRepartition"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        cut_in_order(&input, self.0)
    }

    fn size_of_blocks(&self) -> Option<BlockSize> {
        Some(self.0)
    }

    fn identity<'a>(&self, input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        match self.0 {
            // Cut where the rows of a task say, or where the bytes of blocks do.
            BlockSize::Rows { strict: false, .. } => TaskIdentity::OwnIfInput { input },
            BlockSize::Bytes(_) => TaskIdentity::Unsteady,
            BlockSize::Rows { .. } | BlockSize::Parts { .. } => TaskIdentity::Own { is_whole: true },
        }
    }

    fn absorbs_maps(&self) -> bool {
        false
    }

    fn emission(&self) -> EmissionType {
        EmissionType::Incremental
    }
}

/// The blocks of the input, cut as they come.
pub(super) fn cut_in_order(input: &MapInput, size: BlockSize) -> Result<Arc<dyn Buckets>> {
    let MapInput { plan, context, stage, balance, .. } = input;
    // Blocks of the input matter only where they stay what they are.
    let bytes = match size {
        BlockSize::Rows { strict: false, .. } => block_bytes(context)?,
        BlockSize::Rows { .. } | BlockSize::Bytes(_) | BlockSize::Parts { .. } => PIECE_BYTES,
    };
    // Without an order each block is for itself.
    let parts = steady_parts(plan).unwrap_or(usize::MAX);
    let blocks = blocks_in_order(plan, context, stage.owner(), bytes, balance)?;
    let blocks = blocks.map_ok(move |(id, handle)| (id.first_parts(parts), handle)).boxed();
    Ok(Arc::new(StreamedBuckets::new(Cutter::new(blocks, size))))
}
