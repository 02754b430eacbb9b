//! Rows with equal keys in one block each, out of core.
//!
//! A row's code is the hash of its keys, and a block is a range of codes: as many ranges as are asked for, or so many that
//! each has about `target_shuffle_max_block_size` of the bytes that were really written.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::SortOptions;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::ordered::{RowOrder, Together};
use super::runs::{Coding, Runs, cuts, equal_parts, equal_ranges};
use super::sorted::Sorting;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::memory::{block_bytes, query_memory};
use crate::physical::stage::StageMetrics;

/// A block has at most this part of the memory, where nobody says how many there are.
const BLOCK_PART: usize = 16;
const LEAST_BLOCK_BYTES: usize = 1 << 20;
/// Tasks that are read together have at most this part of a thread's memory, and so many bytes.
const TOGETHER_PART: usize = 16;
const MOST_TOGETHER_BYTES: usize = 32 << 20;

/// The rows of a map side by their keys.
#[derive(Debug)]
pub(super) struct Hashed {
    runs: Arc<Runs>,
    tasks: Vec<Part>,
    /// How the rows of a block are sorted, unless they stay as they come.
    sorting: Option<Sorting>,
    /// Tasks that are so small that several are read together.
    together: Together,
}

/// What an output task reads.
#[derive(Debug, Clone)]
struct Part {
    id: TaskId,
    codes: RangeInclusive<u64>,
    runs: Range<usize>,
}

/// The map side: runs `input`'s tasks and routes their rows.
pub(super) async fn map_side(
    input: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    stage: &StageMetrics,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    num_blocks: Option<usize>,
    sort: bool,
) -> Result<Hashed> {
    let options = BlockyardOptions::from_task(context);
    let runs = Runs::collect(input, context, stage, Coding::Hash { keys: keys.clone() }, num_blocks).await?;
    let threads = context.session_config().target_partitions();
    let most = (query_memory(context)? / (BLOCK_PART * threads)).max(LEAST_BLOCK_BYTES);
    let ranges = match num_blocks {
        Some(n) => equal_ranges(n),
        None => {
            let target = options.target_shuffle_max_block_size.bound().min(most);
            let cuts = cuts(runs.bins(), target, 2 * threads, |cut, target| Ok(equal_parts(&cut, target)))?;
            cuts.into_iter().map(|cut| cut.range).collect()
        }
    };
    let most_bytes = if sort { usize::MAX } else { block_bytes(context)? };
    let tasks: Vec<_> = ranges
        .into_iter()
        .enumerate()
        .flat_map(|(block, codes)| parts(&runs, TaskId::root(block), codes, most_bytes))
        .collect();
    let together_bytes = (query_memory(context)? / (TOGETHER_PART * threads)).min(MOST_TOGETHER_BYTES);
    // A range of codes that is several tasks has far more for itself.
    let whole = tasks.iter().all(|part| part.runs == (0..runs.len()));
    let most = if whole { together_bytes } else { 0 };
    let together = Together::if_even(tasks.len(), runs.bytes(), most, threads, |neighbours| match &tasks[neighbours] {
        [first, .., last] => runs.bytes_in(&(*first.codes.start()..=*last.codes.end())),
        _ => 0,
    });
    let options = SortOptions { descending: false, nulls_first: false };
    let by = || keys.into_iter().map(|expr| PhysicalSortExpr { expr, options }).collect();
    let sorting = sort.then(|| Sorting::new(by(), input.schema(), context, threads, stage.owner())).transpose()?;
    Ok(Hashed { runs: Arc::new(runs), tasks, sorting, together })
}

/// One task, or several where it would give several blocks: of a key that many rows have all threads write some.
fn parts(runs: &Runs, id: TaskId, codes: RangeInclusive<u64>, most_bytes: usize) -> Vec<Part> {
    // The bytes are an estimate: a task that hardly gives a second block stays one.
    let bytes = runs.bytes_in(&codes);
    let parts = if bytes / 3 <= most_bytes / 2 { 1 } else { bytes.div_ceil(most_bytes).clamp(1, runs.len().max(1)) };
    let start = |part: usize| part * runs.len() / parts;
    let part = |part| Part { id: id.child(part), codes: codes.clone(), runs: start(part)..start(part + 1) };
    (0..parts).map(part).collect()
}

impl Hashed {
    /// Rows of all tasks.
    pub(super) fn num_rows(&self) -> usize {
        self.runs.num_rows()
    }

    /// Number of output tasks.
    pub(super) fn num_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// The block that an output task is, and which part of it.
    pub(super) fn id_of(&self, task: usize) -> TaskId {
        self.tasks[task].id.clone()
    }

    /// The rows of an output task: those with equal keys in the order of the input.
    pub(super) fn read(self: Arc<Self>, task: usize) -> BoxStream<'static, Result<RecordBatch>> {
        let Part { id, codes, runs } = self.tasks[task].clone();
        let sorting = self.sorting.clone();
        let rows = match self.together.is_of_use() {
            false => self.runs.stream(runs, codes),
            true => {
                let rows = async move {
                    let range = |task: usize| self.tasks[task].codes.clone();
                    let (ordered, number) = self.together.rows_of(task, &self.runs, range, RowOrder::Input).await?;
                    Ok::<_, DataFusionError>(stream::iter(ordered.batches(number)))
                };
                stream::once(rows).try_flatten().boxed()
            }
        };
        match sorting {
            None => rows,
            Some(sorting) => stream::once(sorting.sorted(id, rows)).try_flatten().boxed(),
        }
    }
}
