//! Tasks: what they are, how partitions pull them, what is counted of them, and that none of their rows is lost.

mod conservation;
mod cpu_meter;
mod executions;
mod failures;
mod history;
mod read_block;
mod stage;
mod steady;
mod streams;
mod task;

#[cfg(test)]
pub(crate) use conservation::faults;
pub(crate) use conservation::{Output, RowBalance, check_rows};
pub(crate) use executions::{Executions, Joined, RunState};
pub(crate) use failures::{FailureLog, Retries, StageRows, StepRows, is_of_data, pause};
pub(crate) use history::{Spread, TaskRecord, TaskSummary};
pub(crate) use read_block::{block_batches, block_rows};
pub(crate) use stage::StageMetrics;
pub(crate) use steady::{has_steady_tasks, is_one_task, steady_parts};
pub(crate) use streams::{
    all_tasks, as_task_plan, block_stream, block_stream_while, blocks_of_task, execute_tasks, is_ordered,
    measured_task_stream, owner_of, planned_blocks, properties, stores_rows, task_of_block, task_stream, ungathered,
    unmeasured_tasks, uses_ours,
};
pub(crate) use task::{BlockStream, Task, TaskInput, TaskStream, stream_of};
