//! What most programs use.

pub use datafusion::prelude::{JoinType, col, lit};

pub use crate::{
    BatchSize, Blockyard, ComputeStrategy, DataContext, Dataset, IterOptions, MapOptions, ReadOptions, SaveMode,
    SessionStateBuilderExt, WriteOptions,
};
