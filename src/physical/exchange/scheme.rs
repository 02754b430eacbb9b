//! Which row goes where.

use std::fmt;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::PhysicalExpr;

use super::BlockSize;

/// How an exchange distributes rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExchangeScheme {
    /// A uniform random permutation of all rows, into this many blocks, or as many as the sizes ask for.
    Random {
        /// Together with a row's place in the input it gives the row's place in the output.
        seed: u64,
        /// Number of output blocks.
        num_blocks: Option<usize>,
    },
    /// Equal runs of consecutive rows, moving as few rows as that takes.
    Slices {
        /// Number of output blocks.
        num_blocks: usize,
    },
    /// Runs of consecutive rows, cut to a size while the input comes.
    Sized(BlockSize),
    /// Every output block gets an equal part of every input block.
    Spread {
        /// Number of output blocks.
        num_blocks: usize,
    },
    /// Rows with equal keys in the same block.
    Hash {
        /// What the rows are told apart by.
        keys: Vec<Arc<dyn PhysicalExpr>>,
        /// Number of output blocks, or as many as the sizes ask for.
        num_blocks: Option<usize>,
        /// Whether the rows of a block are sorted by the keys.
        sort: bool,
    },
    /// All rows in order.
    Range {
        /// The order.
        order: LexOrdering,
        /// Values of the first key at which a block begins; as many blocks as the sizes ask for where it is not said.
        boundaries: Option<Vec<ScalarValue>>,
    },
    /// The blocks as they are, in random order.
    BlockOrder {
        /// Gives the order.
        seed: u64,
        /// Each block is taken from so many, while they come; from all otherwise.
        window: Option<usize>,
    },
}

impl ExchangeScheme {
    /// What the stage below shows as its last step.
    pub(crate) fn map_name(&self) -> &'static str {
        match self {
            Self::Random { .. } => "RandomShuffleMap",
            Self::Slices { .. } => "SplitRepartition",
            Self::Sized(_) => "StreamingRepartitionMap",
            Self::Spread { .. } | Self::Hash { .. } => "RepartitionMap",
            Self::Range { .. } => "SortMap",
            Self::BlockOrder { .. } => "RandomizeBlockOrder",
        }
    }

    /// What the stage above is called.
    pub(crate) fn reduce_name(&self) -> &'static str {
        match self {
            Self::Random { .. } => "RandomShuffleReduce",
            Self::Slices { .. } => "SplitRepartitionReduce",
            Self::Sized(_) => "StreamingRepartition",
            Self::Spread { .. } | Self::Hash { .. } => "RepartitionReduce",
            Self::Range { .. } => "SortReduce",
            Self::BlockOrder { .. } => "RandomizedBlocks",
        }
    }

    /// Whether the operator below may be part of the map side: all but those which only hand blocks around.
    pub(crate) fn absorbs_maps(&self) -> bool {
        !matches!(self, Self::BlockOrder { .. } | Self::Sized(_))
    }
}

impl fmt::Display for ExchangeScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random { seed, num_blocks: None } => write!(f, "random(seed={seed})"),
            Self::Random { seed, num_blocks: Some(n) } => write!(f, "random(seed={seed}, num_blocks={n})"),
            Self::Slices { num_blocks } => write!(f, "slices(num_blocks={num_blocks})"),
            Self::Sized(BlockSize::Rows { rows, strict }) => write!(f, "sized(rows={rows}, strict={strict})"),
            Self::Sized(BlockSize::Bytes(bytes)) => write!(f, "sized(bytes={bytes})"),
            Self::Sized(BlockSize::Parts { num_blocks, total_rows }) => {
                write!(f, "sized(num_blocks={num_blocks}, total_rows={total_rows})")
            }
            Self::Spread { num_blocks } => write!(f, "spread(num_blocks={num_blocks})"),
            Self::Hash { keys, num_blocks, sort } => {
                let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                write!(f, "hash(keys=[{}]", keys.join(", "))?;
                num_blocks.map_or(Ok(()), |n| write!(f, ", num_blocks={n}"))?;
                write!(f, "{})", if *sort { ", sort" } else { "" })
            }
            Self::Range { order, boundaries: None } => write!(f, "range({order})"),
            Self::Range { order, boundaries: Some(boundaries) } => {
                let boundaries: Vec<_> = boundaries.iter().map(ToString::to_string).collect();
                write!(f, "range({order}, boundaries=[{}])", boundaries.join(", "))
            }
            Self::BlockOrder { seed, window: None } => write!(f, "block_order(seed={seed})"),
            Self::BlockOrder { seed, window: Some(n) } => write!(f, "block_order(seed={seed}, window={n})"),
        }
    }
}
