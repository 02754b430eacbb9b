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

mod barriers;
mod combine;
mod exchange;
mod gather;
mod join;
mod local_shuffle;
mod map;
mod memory;
mod operator;
mod part;
mod pipeline;
mod place;
mod queue;
mod read;
mod remote;
mod resume;
mod said;
mod shared;
mod stand_ins;
mod tasks;
mod write;

pub(crate) use barriers::{Claims, FilterBarrierExec, HideClaimsExec, OrderBarrierExec, unambiguous};
pub(crate) use combine::{Combination, CombineExec, TurnsExec};
pub(crate) use exchange::{
    BlockOrderScheme, BlockSize, ExchangeExec, Extent, FetchRows, HashScheme, RandomScheme, RangeScheme, RowRange,
    SizeScheme, SliceScheme, SpreadScheme, StoredBlock, TaskRows, TaskSizes, can_sort, collect_blocks,
};
pub(crate) use gather::{GatherExec, gather, gather_blocks};
pub(crate) use join::{BucketJoinExec, LoopJoinExec, equi_join, equi_joins, is_join};
pub(crate) use local_shuffle::LocalShuffleExec;
pub(crate) use map::{FilterStep, FunctionStep, LimitStep, MapExec, MapStep, ProjectStep, SampleStep};
pub(crate) use memory::{PLENTY, PlanMemory, builders_at_once, collects, query_context, row_bytes, schema_bytes};
pub(crate) use operator::{IntoPlan, MapSide, Operator, PlanExt, TaskPlan, ran_below};
pub(crate) use part::PartExec;
pub(crate) use pipeline::{Pass, PassEpochs, PassSource, PipelineExec, WindowInput, WindowPlans, WindowTasks};
pub use place::Resumes;
pub(crate) use place::{Inputs, Mark, Marked, MarkedStream, begun_at, begun_rows, place_of};
pub(crate) use queue::{QueueExec, QueueLimit};
pub(crate) use read::{
    FileCounts, FilesOfTask, FirstRow, ReadExec, ReadMemory, RowColumn, RowColumns, RowGroupStatistics, ValueRanges,
    file_scan, first_byte, is_as_listed, shown_root,
};
pub use remote::ExecutorStatus;
pub(crate) use remote::{
    Assigned, Connector, ExchangeSource, Exchanged, Executors, FetchedTasksExec, KeptRows, Part, RemoteExchangeExec,
    RemoteExec, SchemeInOrder, StagePrint, StageRunner, StageSource, Statuses, Unit, WholeRows, assigned,
    evaluates_windows, exchange_of, executor_statuses, fetched, fitting_executors, gives_no_left_rows, is_exchanged,
    is_first_rows_of_stage, is_stage, is_whole, is_worthwhile, keeps_partitions, of_part, ranges_of_codes,
    remote_stages, stage_print,
};
pub(crate) use resume::ResumeExec;
pub(crate) use shared::{SharedExec, linked};
pub(crate) use stand_ins::{
    CodeExec, CodedTexts, CompactExec, CumulativeWindowsExec, DecodeExec, FlushExec, FoldExec, GroupTopKExec,
    MiddleRowsExec, Ranking, RollUpExec, SortInMemoryExec, TopOfGroups, WindowPartitionsExec, are_cumulative,
    has_filter, narrow_decimals, patient, patiently, ranking_of,
};
pub(crate) use tasks::{
    FailureLog, Spread, StageMetrics, TaskRecord, TaskSummary, as_task_plan, block_batches, block_rows,
    has_steady_tasks, is_one_task, is_ordered, planned_blocks, steady_parts, stores_rows, stream_of, ungathered,
    uses_ours,
};
pub(crate) use write::{BlockTarget, SinkExec, StoreExec, WriteExec, WritePlace, WriteTasksExec, Writing, write_time};

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
