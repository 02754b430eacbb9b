//! Ray Data's dataset model on Apache DataFusion: blocks, lazy plans, fused map stages, shuffles and a block store that
//! spills, from SQL and from Rust on the same streaming plan.
//!
//! ```
//! # #[tokio::main] async fn main() -> datafusion::error::Result<()> {
//! use blockyard::prelude::*;
//!
//! let context = DataContext::new()?;
//! context.register_batches("keep", Ok);
//! let dataset = context
//!     .range(10_000)?
//!     .filter("id % 2 = 0")?
//!     .map_batches_with("keep", MapOptions { batch_size: BatchSize::Rows(1024), ..Default::default() })?
//!     .random_shuffle(Some(42))?;
//! assert_eq!(dataset.count().await?, 5_000);
//!
//! let same = context.sql("SELECT count(*) AS n FROM random_shuffle((SELECT * FROM range(10000) WHERE id % 2 = 0), seed => 42)");
//! println!("{}", same.await?.show(10).await?);
//! # Ok(()) }
//! ```
//!
//! What most programs need is here or in the [`prelude`]; the rest stands in the module of its subject. These are in
//! the order in which data flows.

/// Executors: processes that run stages for others.
mod cluster;

/// Datasets for other processes.
mod remote;

/// Between processes: addresses, lines, batches.
mod wire;

pub mod dataset;

pub mod sql;

pub mod logical;

pub mod optimizer;

/// From logical to physical.
mod planner;

/// How it is done: operators.
mod physical;

pub mod runtime;

pub mod store;

pub mod block;
mod boxed;

/// Writing to local disks, through the page cache or past it.
mod disk;

pub mod functions;

/// Object stores by their addresses.
mod cloud;

pub mod sources;

pub mod sinks;

pub mod observability;

pub mod call;

pub mod aggregates;

pub mod tensors;

/// The wiring of a session.
mod session;

pub mod config;

/// Errors for the person who caused them.
mod error;

/// Resume tokens: positions in the rows of a plan as values.
mod token;

/// Random seeds.
mod seed;

/// The command-line tool. Uses only what is public.
#[cfg(feature = "cli")]
pub mod cli;

pub mod prelude;

pub use cloud::{StoreEnvironment, StoreOptions};
pub use cluster::{ExecutorOptions, ExecutorServer, executor_statuses};
pub use config::{BlockyardOptions, ByteSize, MemoryLimit};
pub use dataset::{
    Batches, DataContext, Dataset, DatasetPipeline, Deal, GroupedDataset, IterOptions, OnLost, SortKey, SplitBarrier,
    SplitIterator, SplitOptions, TestSize, TrainTestSplit, WriteOptions, asc, desc,
};
pub use functions::{Actor, FunctionRef, MapOptions, WindowSize, actor};
pub use logical::{BlockOrderOptions, LocalShuffleOptions, MixOptions, Repartitioning, ShuffleOptions};
pub use physical::{ExecutorStatus, Resumes};
pub use remote::{SplitClient, SplitClientOptions, SplitServer};
pub use seed::RandomSeed;
pub use session::{Blockyard, SessionStateBuilderExt};
pub use sinks::{Datasink, Repaired, SaveMode, WriteJob, WrittenFile, repair};
pub use sources::{
    Datasource, FileRead, FileSchema, FileShuffle, Filters, PathPartitioning, ReadBinaryFilesOptions, ReadCsvOptions,
    ReadJsonOptions, ReadParquetOptions, ReadPlan, ReadRequest, ReadTask, ReadTextOptions, TaskOrigin, TextEncoding,
};
pub use token::ResumeToken;

/// The programs in the documents are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/rust.md")]
#[doc = include_str!("../docs/guide/training.md")]
#[doc = include_str!("../docs/concepts/pipelines.md")]
pub struct Documents;
