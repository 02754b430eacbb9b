//! What a plan needs in memory, and how that is shared out before it runs: rows per batch by their width, and what each
//! sort sets aside for its merge.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, resources_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, InputOrderMode};

use super::needs::{Needs, builders_at_once, builds, collects, groups, sort_streams, total};
use crate::block::has_views;
use crate::config::{BlockyardOptions, ByteSize};
use crate::physical::operator::{InputOverlap, Operator, PlanExt, Retention, stages_below};
use crate::runtime::on_io_thread;
use crate::store::{
    Admission, BlockStore, Entry, MIN_MERGE_FACTOR, MIN_MERGE_PART, QueryNeeds, QueryPool, SharedMemoryPool,
};

/// What DataFusion sets aside for the merge of each sort when there is plenty.
const SORT_MERGE_BYTES: usize = 10 << 20;
/// From this limit on, batches that are counted several times do no harm.
pub(crate) const PLENTY: usize = 2 << 30;
/// Bytes that a batch should have at most when there is plenty.
const BATCH_BYTES: usize = 8 << 20;
/// A batch has at most this part of a stream's share of the limit,
const BATCH_PART: usize = 32;
/// or this part where rows that spill are merged: a merge has two batches of each run in memory. With larger ones it
/// takes fewer runs at once, and writes most rows again and again until all are merged. Four million groups by texts of
/// 96 bytes were written 5.6 times within 64 MiB, and are written twice, in a third of the time.
const MERGED_PART: usize = 512;
/// Smaller batches cost more to handle than they save.
const MIN_BATCH_BYTES: usize = 64 << 10;
/// Bytes that a value of unknown length is taken to have.
const TEXT_BYTES: usize = 32;
/// Bytes that a column adds to an encoded key, and that each key has.
const KEY_BYTES: usize = 2;
const ROW_KEY_BYTES: usize = 8;
/// Bytes that a batch should have at most where groups grow with their rows: it may well have many times as many.
const COLLECTING_BATCH_BYTES: usize = 1 << 20;
/// By how much more such a state is taken to have than a list of a file, or a text.
const COLLECTED: usize = 64;
/// So many stages that build blocks at once have what a stage alone would have: the parts of the memory that their
/// tasks take leave room for another.
const BUILDERS: usize = 2;
/// By what the search for the least limit of a plan goes on at least.
const MIN_STEP: usize = 1 << 20;

/// How a plan shares out its memory.
#[derive(Debug, Clone)]
pub(crate) struct PlanMemory {
    batch_rows: usize,
    batch_bytes: usize,
    sort_bytes: usize,
    sorts_views: bool,
    /// Bytes that a merge of sorts takes for each byte of the rows.
    merge_factor: usize,
    /// Whether operators hold more than the batches that pass.
    holds: bool,
    /// Stages whose tasks build blocks, or sort them.
    building_stages: usize,
    /// Stages that end in a queue.
    queues: usize,
    needs: Needs,
}

impl PlanMemory {
    /// Of `plan` within `limit` bytes, with at most `max_rows` per batch.
    pub(crate) fn of(plan: &dyn ExecutionPlan, limit: usize, max_rows: usize) -> Self {
        let (mut sorts_views, mut holds, mut merge_factor) = (false, false, MIN_MERGE_FACTOR);
        let (mut building_stages, mut queues, mut streams, mut collected_bytes) = (0, 0, 1, 0);
        visit(plan, &mut |node| {
            let keeps = node.as_operator().map_or(Retention::Batches, Operator::keeps);
            queues += usize::from(keeps == Retention::Queue);
            building_stages += usize::from(builds(node));
            streams = streams.max(node.output_partitioning().partition_count());
            holds |= builds(node) || is_join(node) || sort_streams(node) > 0 || groups(node);
            merge_factor = merge_factor.max(key_factor(node));
            if keeps_values(node) && groups(node) && !gives_groups_in_turn(node) && limit <= PLENTY {
                collected_bytes = collected_bytes.max(schema_bytes(&node.schema()) * COLLECTED);
            }
            sorts_views |= sort_streams(node) > 0 && node.schema().fields().iter().any(|f| has_views(f.data_type()));
        });
        let streams = sorts_at_once(plan).max(streams).max(1);
        let row_bytes = row_bytes(plan).max(collected_bytes).max(1);
        let max_bytes = if collected_bytes > 0 { COLLECTING_BATCH_BYTES } else { BATCH_BYTES };
        let part = if holds && collected_bytes == 0 { MERGED_PART } else { BATCH_PART };
        let batch_bytes = (limit / (part * streams)).clamp(MIN_BATCH_BYTES, max_bytes);
        let batch_rows = (batch_bytes / row_bytes).clamp(1, max_rows.max(1));
        let sort_bytes = SORT_MERGE_BYTES.min(limit / (4 * streams)).min(limit / (2 * MIN_MERGE_PART));
        let batch_bytes = batch_rows * row_bytes;
        let needs = Needs::of(plan, batch_bytes, sort_bytes);
        Self { batch_rows, batch_bytes, sort_bytes, sorts_views, merge_factor, holds, building_stages, queues, needs }
    }

    /// Of `plan` within the least limit in which it can run.
    pub(crate) fn min_of(plan: &dyn ExecutionPlan, max_rows: usize) -> Self {
        let mut limit = 0;
        loop {
            // More memory makes for larger batches, up to the size that they should have when there is plenty.
            let memory = Self::of(plan, limit, max_rows);
            if memory.min_bytes() <= limit {
                return memory;
            }
            limit = memory.min_bytes().max(limit.saturating_add(MIN_STEP));
        }
    }

    /// The least bytes in which the plan can run as it is set up.
    pub(crate) fn min_bytes(&self) -> usize {
        total(&self.needs.peak)
    }

    /// What the plan should be promised when it was planned for `memory` bytes: more than the least where it holds more
    /// than the batches that pass.
    pub(crate) fn wanted_bytes(&self, memory: usize) -> usize {
        match self.holds {
            // A stage takes a quarter for blocks that its tasks build, or sort; two of them work at once.
            true => self.min_bytes().saturating_add(memory / 4 * self.building_stages.min(2)).max(memory / 2),
            // Blocks that wait in queues are few, and leave memory when there is no room.
            false => self.min_bytes().saturating_add(memory / 16 * self.queues.min(4)),
        }
    }

    /// An error that says what would do, unless `limit` does.
    pub(crate) fn check(&self, limit: usize) -> Result<()> {
        if self.min_bytes() > limit {
            return resources_err!("the memory limit is {}, but {self}", ByteSize(limit));
        }
        Ok(())
    }
}

impl fmt::Display for PlanMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the plan needs at least {}", ByteSize(self.min_bytes()))?;
        let mut needs: Vec<_> = self.needs.peak.iter().filter(|need| need.bytes > 0).collect();
        needs.sort_by_key(|need| std::cmp::Reverse(need.bytes));
        for (i, need) in needs.iter().take(4).enumerate() {
            write!(f, "{}{} {}", if i == 0 { ": " } else { ", " }, need.operator, ByteSize(need.bytes))?;
        }
        Ok(())
    }
}

/// The context in which query number `query` runs `plan`: its operators are known by the query, and its batches and
/// merges fit the limit, or a share of it beside other queries. Waits until the others leave what the plan needs. Fails
/// when the limit is less than that. What is returned beside the context must be held while the query runs.
pub(crate) async fn query_context(
    context: TaskContext,
    plan: &dyn ExecutionPlan,
    query: u64,
) -> Result<(Arc<TaskContext>, Admission)> {
    let store = BlockStore::of_task(&context)?;
    let limit = store.budget().limit();
    let share = limit / (store.num_queries() + 1);
    let mut config = context.session_config().clone();
    let mut memory = PlanMemory::of(plan, share, config.batch_size());
    if memory.min_bytes() > share {
        memory = PlanMemory::min_of(plan, config.batch_size());
        memory.check(limit)?;
    }
    let admission = match store.enter(query, memory.wanted_bytes(share)) {
        Entry::Admitted(admission) => admission,
        Entry::Waiting(place) => {
            let asking = Arc::new(());
            let asked = Arc::clone(&asking);
            on_io_thread(move || place.wait(&asked)).await?
        }
    };
    config = config.with_batch_size(memory.batch_rows);
    let execution = &mut config.options_mut().execution;
    execution.sort_spill_reservation_bytes = memory.sort_bytes;
    if memory.sorts_views && limit <= PLENTY {
        // A sort cuts what it has sorted at once into batches, and counts the texts of all for each of them.
        execution.sort_in_place_threshold_bytes = execution.sort_in_place_threshold_bytes.min(2 * memory.batch_bytes);
    }
    let (mut runtime, builders) = (context.runtime_env().as_ref().clone(), builders_at_once(plan));
    if let Some(pool) = config.get_extension::<SharedMemoryPool>() {
        let needs = QueryNeeds {
            memory: share,
            merge_factor: memory.merge_factor,
            threads: config.target_partitions(),
            builders,
        };
        let pool: Arc<dyn MemoryPool> = Arc::new(QueryPool::new(query, needs, pool, Arc::clone(admission.operators())));
        runtime.memory_pool = pool;
    }
    Ok((Arc::new(context.with_session_config(config).with_runtime(Arc::new(runtime))), admission))
}

/// The bytes that a stage of the query of a task may count on: what the query was planned for, and less of it where
/// more than two stages build blocks at once.
pub(crate) fn stage_memory(context: &TaskContext) -> Result<usize> {
    match QueryPool::needs_of(context) {
        Some(needs) => Ok(needs.memory / needs.builders.div_ceil(BUILDERS).max(1)),
        None => Ok(BlockStore::of_task(context)?.budget().limit()),
    }
}

/// The most bytes of a block that a task builds.
pub(crate) fn block_bytes(context: &TaskContext) -> Result<usize> {
    let threads = context.session_config().target_partitions();
    Ok(BlockyardOptions::from_task(context).block_bytes_within(stage_memory(context)?, threads))
}

fn visit<'a>(plan: &'a dyn ExecutionPlan, see: &mut impl FnMut(&'a dyn ExecutionPlan)) {
    see(plan);
    for child in stages_below(plan) {
        visit(child.as_ref(), see);
    }
}

/// Bytes that the merge of a sort takes for each byte of its rows: for the rows, and for keys that may be computed and
/// wider than they.
fn key_factor(plan: &dyn ExecutionPlan) -> usize {
    let Some(sort) = plan.downcast_ref::<SortExec>() else {
        return 0;
    };
    let schema = sort.schema();
    let key = |key: &PhysicalSortExpr| key.expr.data_type(&schema).map_or(TEXT_BYTES, |t| type_bytes(&t)) + KEY_BYTES;
    let keys: usize = ROW_KEY_BYTES + sort.expr().iter().map(key).sum::<usize>();
    1 + keys.div_ceil(schema_bytes(&schema).max(1))
}

/// The same in all of a plan.
fn sorts_at_once(plan: &dyn ExecutionPlan) -> usize {
    let below = plan.children().into_iter().map(|child| sorts_at_once(child.as_ref()));
    match gives_one_after_the_other(plan) {
        true => below.max().unwrap_or(0),
        false => below.sum::<usize>() + sort_streams(plan),
    }
}

/// Bytes of a row as wide as rows get in a plan.
pub(crate) fn row_bytes(plan: &dyn ExecutionPlan) -> usize {
    if let Some(known) = plan.as_operator().and_then(Operator::row_bytes) {
        return known;
    }
    let children = plan.children().into_iter().map(|child| row_bytes(child.as_ref()));
    let below = match is_join(plan) {
        true => children.sum(),
        false => children.max().unwrap_or(0),
    };
    match plan.children().is_empty() || plan.is::<UnionExec>() || gives_one_after_the_other(plan) {
        true => below.max(schema_bytes(&plan.schema())),
        false => below,
    }
}

/// Whether it is an aggregate that has one group at a time.
fn gives_groups_in_turn(plan: &dyn ExecutionPlan) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|a| *a.input_order_mode() == InputOrderMode::Sorted)
}

/// Whether it is an aggregate whose groups grow with their rows.
fn keeps_values(plan: &dyn ExecutionPlan) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|a| a.aggr_expr().iter().any(|f| collects(f)))
}

/// Whether its rows have the columns of several inputs.
fn is_join(plan: &dyn ExecutionPlan) -> bool {
    plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.as_operator().is_some_and(|operator| operator.brings_together() == InputOverlap::SideBySide)
}

fn gives_one_after_the_other(plan: &dyn ExecutionPlan) -> bool {
    plan.as_operator().is_some_and(|operator| operator.brings_together() == InputOverlap::AfterEachOther)
}

/// Bytes of a row by the types of its columns.
pub(crate) fn schema_bytes(schema: &Schema) -> usize {
    schema.fields().iter().map(|field| type_bytes(field.data_type())).sum()
}

/// Bytes of a value of a type.
pub(crate) fn type_bytes(data_type: &DataType) -> usize {
    match data_type {
        DataType::Null => 0,
        DataType::Boolean => 1,
        DataType::FixedSizeBinary(bytes) => (*bytes).max(0) as usize,
        DataType::Struct(fields) => fields.iter().map(|field| type_bytes(field.data_type())).sum(),
        DataType::FixedSizeList(item, length) => type_bytes(item.data_type()) * (*length).max(0) as usize,
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => 4 * type_bytes(item.data_type()),
        DataType::Dictionary(key, value) => type_bytes(key) + type_bytes(value),
        other => other.primitive_width().unwrap_or(TEXT_BYTES),
    }
}
