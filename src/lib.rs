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
//! The modules stand in the order in which data flows.

/// Front door 1: the Dataset API.
mod dataset;

/// Front door 2: SQL.
mod sql;

/// What is to be done: our logical nodes.
mod logical;

/// Rewrites of logical and physical plans, and the registry that orders them.
mod optimizer;

/// From logical to physical.
mod planner;

/// How it is done: operators.
mod physical;

/// Starts work.
mod runtime;

/// Blocks under one memory limit, and their spill files.
mod store;

/// What is stored, queued, counted and written as one thing.
mod block;

/// Writing to local disks, through the page cache or past it.
mod disk;

/// What map operators call.
mod functions;

/// Where rows come from.
mod sources;

/// Where rows go.
mod sinks;

/// Says what happened.
mod observability;

/// Calls of table functions: their trait, arguments and values.
pub mod call;

/// Aggregates of groups that DataFusion does not have.
pub mod aggregates;

/// The wiring of a session.
mod session;

/// The `blockyard.*` options.
mod config;

/// Errors for the person who caused them.
mod error;

/// Random seeds.
mod seed;

/// The command-line tool. Uses only what is public.
#[cfg(feature = "cli")]
pub mod cli;

pub mod prelude;

pub use block::{Block, BlockMetadata, TaskId};
pub use config::{
    BlockSizePreset, BlockyardOptions, ByteSize, MaxErroredBlocks, MemoryLimit, ResourceLimit, SpillCompression,
    machine_memory,
};
pub use dataset::{
    DataContext, Dataset, GroupedDataset, IterOptions, Paths, Predicate, SortKey, WriteOptions, asc, desc,
};
pub use functions::{
    Actor, ActorPool, BatchFunction, BatchSize, Compute, ComputeStrategy, Concurrency, Failures, FunctionLanguage,
    FunctionRef, FunctionRegistry, MapFunction, MapOptions, MaxErrors, OnError, Row, Workers, actor, filter_rows,
    flat_map_rows, from_async, from_closure, map_rows,
};
pub use logical::{
    BlockOrderOptions, ByKeys, IntoBlocks, IntoRows, MapNode, MapOperator, MixNode, MixOptions, MixStoppingCondition,
    RandomShuffleNode, RandomizeBlocksNode, RepartitionNode, Repartitioning, ShuffleOptions, ZipNode,
};
pub use observability::{
    ExecutionCallback, ExecutionFailed, ExecutionProgress, ExecutionStarted, ExecutionSucceeded, SystemColumn,
    SystemTable, system_tables,
};
pub use optimizer::{Anchor, RuleRegistry};
pub use runtime::{BackpressurePolicy, ConcurrencyCap, DownstreamCapacity, OpId, OpView, ResourceBudget, Resources};
pub use seed::RandomSeed;
pub use session::{Blockyard, SessionStateBuilderExt};
pub use sinks::SaveMode;
pub use sources::{Datasource, DatasourceTable, FileKind, ReadCsvOptions, ReadJsonOptions, ReadParquetOptions};
pub use sql::SqlStatement;
pub use store::{
    Allocator, BlockHandle, BlockInfo, BlockStore, Budget, Holder, Keep, NextUse, Owner, PinnedBlock, SharedMemoryPool,
    SpillDirectories, SpillFileInfo,
};

/// The programs in the documents are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/guide/rust.md")]
pub struct Documents;
