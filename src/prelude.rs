//! What most programs use.

pub use datafusion::prelude::{JoinType, col, lit};

pub use crate::{
    BatchSize, Blockyard, ComputeStrategy, DataContext, Dataset, IterOptions, MapOptions, MixOptions,
    MixStoppingCondition, RandomSeed, ReadCsvOptions, ReadJsonOptions, ReadParquetOptions, Repartitioning, SaveMode,
    SessionStateBuilderExt, WriteOptions, asc, desc,
};
