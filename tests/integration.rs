//! One binary with all integration tests, so that they link once.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

/// Functions with state.
#[path = "integration/actors.rs"]
mod actors;
/// Datasets as SQL text.
#[path = "integration/as_sql.rs"]
mod as_sql;
/// Wrong calls and wrong data: every message that a user can get.
#[path = "integration/bad_input.rs"]
mod bad_input;
/// Lines that do not fit, and what becomes of them.
#[path = "integration/bad_rows.rs"]
mod bad_rows;
/// Table functions of applications.
#[path = "integration/calls.rs"]
mod calls;
/// What plain DataFusion still does, for which there are guards.
#[path = "integration/canaries.rs"]
mod canaries;
/// Which files import each other.
#[path = "integration/circles.rs"]
mod circles;
/// The command-line tool as a process.
#[path = "integration/cli.rs"]
mod cli;
/// Stages that run in other processes.
#[path = "integration/cluster/mod.rs"]
mod cluster;
/// Windows that are evaluated from row to row, against plain DataFusion.
#[path = "integration/cumulative_windows.rs"]
mod cumulative_windows;
/// The Dataset API, call by call.
#[path = "integration/dataset.rs"]
mod dataset;
/// Filters that dictionaries of Parquet files are asked.
#[path = "integration/dictionaries.rs"]
mod dictionaries;
/// Documents against the code.
#[path = "integration/docs.rs"]
mod docs;
/// Groups that are made before joins.
#[path = "integration/early_groups.rs"]
mod early_groups;
/// Whole numbers that have no room in their type.
#[path = "integration/exact_numbers.rs"]
mod exact_numbers;
/// What applications add of their own.
#[path = "integration/extending.rs"]
mod extending;
/// Small row groups in larger tasks.
#[path = "integration/fewer_tasks.rs"]
mod fewer_tasks;
/// Files as they are found, change, and are told apart.
#[path = "integration/files.rs"]
mod files;
/// Sessions, datasets and directories that tests share.
#[path = "integration/fixtures.rs"]
mod fixtures;
/// Which operators become one stage.
#[path = "integration/fusion.rs"]
mod fusion;
/// Grouping sets that are made from finer ones.
#[path = "integration/grouping_sets.rs"]
mod grouping_sets;
/// Aggregates with more groups than memory, or nearly so.
#[path = "integration/groups.rs"]
mod groups;
/// Iterators over datasets.
#[path = "integration/iteration.rs"]
mod iteration;
/// Joins of several tables in another order than that of the text.
#[path = "integration/join_order.rs"]
mod join_order;
/// Joins of which no side has to fit in memory.
#[path = "integration/joins.rs"]
mod joins;
#[path = "integration/loop_joins.rs"]
mod loop_joins;
#[path = "integration/memory/mod.rs"]
mod memory;
/// Aggregates of the same rows.
#[path = "integration/merged_aggregates.rs"]
mod merged_aggregates;
/// Functions that misbehave on purpose.
#[path = "integration/misbehaving/mod.rs"]
mod misbehaving;
/// What a query says of itself.
#[path = "integration/observability.rs"]
mod observability;
/// Random plans against plain DataFusion.
#[path = "integration/oracle.rs"]
mod oracle;
/// Random pipelines against a model.
#[path = "integration/pipelines/mod.rs"]
mod pipelines;
/// Commits that were cut short.
#[path = "integration/repair.rs"]
mod repair;
/// Iterators that go on where others were.
#[path = "integration/resume.rs"]
mod resume;
/// Stages that the scheduler runs.
#[path = "integration/runtime.rs"]
mod runtime;
/// Splits for other processes.
#[path = "integration/served.rs"]
mod served;
/// Sub-plans that a query has several times.
#[path = "integration/shared_subplans.rs"]
mod shared_subplans;
/// Shuffles and repartitions: rows, order, uniformity, files.
#[path = "integration/shuffle.rs"]
mod shuffle;
/// The `.slt` files under every engine mode.
#[path = "integration/slt.rs"]
mod slt;
/// Sorts of partitions in memory.
#[path = "integration/sorts_in_memory.rs"]
mod sorts_in_memory;
/// Parts of datasets that are datasets.
#[path = "integration/splits.rs"]
mod splits;
/// Random star-schema queries against plain DataFusion.
#[path = "integration/stars.rs"]
mod stars;
/// Object stores by their addresses.
#[path = "integration/stores/mod.rs"]
mod stores;
/// Splits for several consumers at once.
#[path = "integration/streaming_splits.rs"]
mod streaming_splits;
/// Stored tables and what changes them.
#[path = "integration/tables.rs"]
mod tables;
/// Columns of tensors.
#[path = "integration/tensors.rs"]
mod tensors;
/// Files of lines, and files as they are.
#[path = "integration/text_files.rs"]
mod text_files;
/// Sources: which file may import which.
#[path = "integration/tidy.rs"]
mod tidy;
/// The first rows of each group.
#[path = "integration/top_of_groups.rs"]
mod top_of_groups;
/// The TPC-H queries.
#[path = "integration/tpch.rs"]
mod tpch;
/// Traps of DataFusion and the guards against them.
#[path = "integration/traps.rs"]
mod traps;
/// Expressions that give another value each time.
#[path = "integration/volatile.rs"]
mod volatile;
/// What a write does with what is there, before it begins and meanwhile.
#[path = "integration/write_modes.rs"]
mod write_modes;
