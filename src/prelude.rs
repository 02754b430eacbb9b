//! What most programs use.

pub use datafusion::prelude::{JoinType, col, lit};

pub use crate::functions::{BatchSize, ComputeStrategy};
pub use crate::logical::MixStoppingCondition;
#[cfg(feature = "ndarray")]
pub use crate::tensors::TensorBatch;
pub use crate::{
    Blockyard, DataContext, Dataset, IterOptions, MapOptions, MixOptions, RandomSeed, ReadBinaryFilesOptions,
    ReadCsvOptions, ReadJsonOptions, ReadParquetOptions, Repartitioning, SaveMode, SessionStateBuilderExt,
    ShuffleOptions, WriteOptions, asc, desc,
};
