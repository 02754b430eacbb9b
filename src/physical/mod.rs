//! Operators. They implement DataFusion's `ExecutionPlan`, and beside it `TaskPlan`: DataFusion gets batches, and our
//! operators get tasks and blocks from each other.
//!
//! ```text
//!  partition 0 ──┐  shared queue of tasks                 partition 0: task 0 ─ steps ─ blocks 0.0 0.1
//!  partition 1 ──┴─ [0] [1] [2] [3] ... [199]     ──>     partition 1: task 1 ─ steps ─ blocks 1.0
//! ```
//!
//! A **partition** is a stream that DataFusion polls, as many as `target_partitions`. A **task** is a read task or an
//! input block; partitions pull tasks from one shared queue, so the number of tasks says nothing about threads. A
//! **block** is formed only where a stage ends: before a queue, an exchange or a sink.

mod block_files;
mod bottleneck;
mod claims;
mod combine;
mod compact;
mod conservation;
mod cpu_meter;
mod diagnose;
mod dispatch;
mod exchange;
mod executions;
mod failures;
mod filter_barrier;
mod fold;
mod gather;
mod input_order;
mod join;
mod map;
mod memory;
mod needs;
mod operator;
mod order_barrier;
mod queue;
mod read;
mod read_files;
mod stage;
mod stage_run;
mod steady;
mod store_rows;
mod stored;
mod stored_partition;
mod tasks;
mod turns;
mod window;
mod write;
mod write_clock;

pub(crate) use bottleneck::bottleneck;
pub(crate) use combine::{Combination, CombineExec};
pub(crate) use compact::CompactExec;
pub(crate) use diagnose::DiagnoseExec;
pub(crate) use exchange::{
    BlockOrderScheme, BlockSize, ExchangeExec, HashScheme, RandomScheme, RangeScheme, SizeScheme, SliceScheme,
    SpreadScheme, StoredBlock, can_sort, collect_blocks,
};
pub(crate) use failures::FailureLog;
pub(crate) use filter_barrier::{FilterBarrierExec, unambiguous};
pub(crate) use fold::FoldExec;
pub(crate) use gather::{GatherExec, gather, ungathered};
pub(crate) use join::BucketJoinExec;
pub(crate) use map::{FilterStep, FunctionStep, LimitStep, MapExec, MapStep, ProjectStep, SampleStep};
pub(crate) use memory::{PLENTY, PlanMemory, query_context, row_bytes, schema_bytes};
pub(crate) use needs::collects;
pub(crate) use operator::{Operator, PlanExt, stages_below};
pub(crate) use order_barrier::OrderBarrierExec;
pub(crate) use queue::{QueueExec, QueueLimit};
pub(crate) use read::{ReadExec, ReadMemory};
pub(crate) use read_files::{FilesOfTask, FirstRow, file_scan};
pub(crate) use stage::{StageMetrics, TaskRecord};
pub(crate) use steady::{has_steady_tasks, is_one_task, steady_parts};
pub(crate) use store_rows::{BlockTarget, StoreExec};
pub(crate) use stored::block_batches;
pub(crate) use tasks::{MapSide, TaskPlan, as_task_plan, is_ordered, planned_blocks, stores_rows, uses_ours};
pub(crate) use turns::TurnsExec;
pub(crate) use window::WindowPartitionsExec;
pub(crate) use write::WriteExec;

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::Statistics;
use datafusion::physical_plan::statistics::StatisticsArgs;

/// Statistics of an operator that gives the rows of its input: of all of them, not of a partition, which pulls what
/// comes.
fn rows_of_input(inputs: &[Arc<Statistics>], args: &StatisticsArgs, schema: &Schema) -> Arc<Statistics> {
    match args.partition() {
        None => Arc::clone(&inputs[0]),
        Some(_) => Arc::new(Statistics::new_unknown(schema)),
    }
}
