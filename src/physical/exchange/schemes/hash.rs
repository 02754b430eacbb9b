//! Rows with equal keys in one block each, out of core.
//!
//! A row's code is the hash of its keys, and a block is a range of codes: as many ranges as are asked for, or so many
//! that each has about `target_shuffle_max_block_size` of the bytes that were really written.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::compute::SortOptions;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use futures::{StreamExt, TryStreamExt, stream};

use super::Scheme;
use crate::block::TaskId;
use crate::config::BlockyardOptions;
use crate::physical::exchange::buckets::{Batches, Buckets, MapInput};
use crate::physical::exchange::cuts::{Cut, cuts, equal_parts, equal_ranges};
use crate::physical::exchange::distributed::{Distributed, Extent, Fetching, KeptBy, RowRange, TaskRows, TaskSizes};
use crate::physical::exchange::ordered::{RowOrder, SharedReads};
use crate::physical::exchange::router::KeyEncoding;
use crate::physical::exchange::runs::Runs;
use crate::physical::exchange::seen_keys::Wanted;
use crate::physical::exchange::sorted::Sorting;
use crate::physical::memory::{block_bytes, stage_memory};
use crate::physical::operator::TaskIdentity;

/// A block has at most this part of the memory, where nobody says how many there are.
const BLOCK_PART: usize = 16;
const MIN_BLOCK_BYTES: usize = 1 << 20;
/// Tasks that are read together have at most this part of a thread's memory, and so many bytes.
const TOGETHER_PART: usize = 16;
const MAX_TOGETHER_BYTES: usize = 32 << 20;

/// The rows of a map side by their keys.
#[derive(Debug)]
struct Hashed {
    runs: Arc<Runs>,
    tasks: Vec<HashTask>,
    /// The number of the first of them: rows of those before are not there.
    first_task: usize,
    /// How the rows of a block are sorted, unless they stay as they come.
    sorting: Option<Sorting>,
    /// Tasks that are so small that several are read together.
    together: SharedReads,
}

/// What an output task reads.
#[derive(Debug, Clone)]
struct HashTask {
    id: TaskId,
    codes: RangeInclusive<u64>,
    runs: Range<usize>,
}

/// Rows with equal keys in the same block.
#[derive(Debug)]
pub(crate) struct HashScheme {
    /// What the rows are told apart by.
    pub(crate) keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Number of output blocks, or as many as the sizes ask for.
    pub(crate) num_blocks: Option<usize>,
    /// Whether the rows of a block are sorted by the keys.
    pub(crate) sort: bool,
}

impl fmt::Display for HashScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        write!(f, "hash(keys=[{}]", keys.join(", "))?;
        self.num_blocks.map_or(Ok(()), |n| write!(f, ", num_blocks={n}"))?;
        write!(f, "{})", if self.sort { ", sort" } else { "" })
    }
}

#[async_trait]
impl Scheme for HashScheme {
    fn map_name(&self) -> &'static str {
        "RepartitionMap"
    }

    fn reduce_name(&self) -> &'static str {
        "RepartitionReduce"
    }

    async fn map_side(&self, input: MapInput) -> Result<Arc<dyn Buckets>> {
        let hashed = self.hash(&input).await?;
        input.balance.take(hashed.runs.num_rows());
        Ok(Arc::new(hashed))
    }

    fn identity<'a>(&self, _input: &'a Arc<dyn ExecutionPlan>) -> TaskIdentity<'a> {
        match self.num_blocks {
            // As many as fit the memory.
            None => TaskIdentity::Unsteady,
            // Large ones are cut.
            Some(_) => TaskIdentity::Own { is_whole: self.sort },
        }
    }

    fn unsteady_order(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<&'static str> {
        let is_steady = self.num_blocks.is_some() && self.sort;
        (!is_steady).then_some("its blocks are as memory asks for; say num_blocks, and sort")
    }

    fn begins_at_tasks(&self) -> bool {
        self.num_blocks.is_some() && self.sort
    }

    fn planned_blocks(&self, _input: &Arc<dyn ExecutionPlan>) -> Option<usize> {
        self.num_blocks
    }

    fn keys(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.keys.iter().collect()
    }

    fn distributed(&self) -> Option<&dyn Distributed> {
        Some(self)
    }
}

impl HashScheme {
    /// The codes of each block, of which each has at most so many bytes where nobody says how many there are.
    fn ranges(&self, bins: &[usize], most: usize, threads: usize, options: &BlockyardOptions) -> Result<Vec<Cut>> {
        let even = |n| equal_ranges(n).into_iter().map(|range| Cut { range, bytes: 0 }).collect();
        match self.num_blocks {
            Some(n) => Ok(even(n)),
            None => {
                let target = options.target_shuffle_max_block_size.bound().min(most);
                cuts(bins, target, 2 * threads, |cut, target| Ok(equal_parts(&cut, target)))
            }
        }
    }

    fn sort_order(&self) -> Vec<PhysicalSortExpr> {
        let options = SortOptions { descending: false, nulls_first: false };
        self.keys.iter().map(|expr| PhysicalSortExpr { expr: Arc::clone(expr), options }).collect()
    }
}

impl Distributed for HashScheme {
    fn kept_by(&self) -> KeptBy {
        KeptBy::Codes(KeyEncoding::Hash { keys: self.keys.clone() })
    }

    // Rows with other keys come run by run.
    fn is_steady(&self) -> bool {
        self.sort
    }

    fn tasks(&self, units: &[&Extent], _sizes: TaskSizes, context: &TaskContext) -> Result<Vec<TaskRows>> {
        let mut bins: Vec<usize> = Vec::new();
        for unit in units {
            bins.resize(bins.len().max(unit.bins.len()), 0);
            bins.iter_mut().zip(&unit.bins).for_each(|(bin, more)| *bin += more);
        }
        let threads = context.session_config().target_partitions();
        let most = (stage_memory(context)? / (BLOCK_PART * threads)).max(MIN_BLOCK_BYTES);
        let ranges = self.ranges(&bins, most, threads, &BlockyardOptions::from_task(context))?;
        let rows =
            |Cut { range, bytes }: Cut| TaskRows { ranges: vec![RowRange::Codes(*range.start(), *range.end())], bytes };
        Ok(ranges.into_iter().map(rows).collect())
    }

    fn rows(&self, id: TaskId, rows: TaskRows, fetching: Fetching) -> Result<Batches> {
        let Fetching { fetch, schema, context, owner } = fetching;
        let rows = stream::iter(rows.ranges).map(move |range| fetch(range)).flatten().boxed();
        if !self.sort {
            return Ok(rows);
        }
        let threads = context.session_config().target_partitions();
        let sorting = Sorting::new(self.sort_order(), schema, &context, threads, &owner)?;
        Ok(stream::once(sorting.sorted(id, rows)).try_flatten().boxed())
    }
}

#[async_trait]
impl Buckets for Hashed {
    async fn read(self: Arc<Self>, index: usize) -> Result<Option<(TaskId, Batches)>> {
        let place = index - self.first_task;
        Ok(self.tasks.get(place).map(|part| part.id.clone()).map(|id| (id, self.rows_of(place))))
    }

    fn ranges_of_codes(&self) -> Option<usize> {
        Some(self.first_task + self.tasks.len())
    }
}

impl HashScheme {
    /// The map side: runs the tasks of the input and routes their rows.
    async fn hash(&self, input: &MapInput) -> Result<Hashed> {
        let MapInput { plan, context, stage, .. } = input;
        let (keys, num_blocks, sort) = (self.keys.clone(), self.num_blocks, self.sort);
        let options = BlockyardOptions::from_task(context);
        let coding = KeyEncoding::Hash { keys: keys.clone() };
        let runs = Runs::collect(plan, context, stage, coding, num_blocks, Wanted::from(input.first_code())).await?;
        let threads = context.session_config().target_partitions();
        let most = (stage_memory(context)? / (BLOCK_PART * threads)).max(MIN_BLOCK_BYTES);
        let ranges = self.ranges(runs.bins(), most, threads, &options)?.into_iter().map(|cut| cut.range);
        let max_bytes = if sort { usize::MAX } else { block_bytes(context)? };
        let first_task = input.begin.map_or(0, |first| first.task);
        let tasks: Vec<_> = ranges
            .enumerate()
            .skip(first_task)
            .flat_map(|(block, codes)| parts(&runs, TaskId::root(block), codes, max_bytes))
            .collect();
        let together_bytes = (stage_memory(context)? / (TOGETHER_PART * threads)).min(MAX_TOGETHER_BYTES);
        // A range of codes that is several tasks has far more for itself.
        let whole = tasks.iter().all(|part| part.runs == (0..runs.len()));
        let most = if whole { together_bytes } else { 0 };
        let together =
            SharedReads::if_even(tasks.len(), runs.bytes(), most, threads, |neighbours| match &tasks[neighbours] {
                [first, .., last] => runs.bytes_in(&(*first.codes.start()..=*last.codes.end())),
                _ => 0,
            });
        let sorting = || Sorting::new(self.sort_order(), plan.schema(), context, threads, stage.owner());
        let sorting = sort.then(sorting).transpose()?;
        Ok(Hashed { runs: Arc::new(runs), tasks, first_task, sorting, together })
    }
}

/// One task, or several where it would give several blocks: of a key that many rows have all threads write some.
fn parts(runs: &Runs, id: TaskId, codes: RangeInclusive<u64>, max_bytes: usize) -> Vec<HashTask> {
    // The bytes are an estimate: a task that hardly gives a second block stays one.
    let bytes = runs.bytes_in(&codes);
    let parts = if bytes / 3 <= max_bytes / 2 { 1 } else { bytes.div_ceil(max_bytes).clamp(1, runs.len().max(1)) };
    let start = |part: usize| part * runs.len() / parts;
    let part = |part| HashTask { id: id.child(part), codes: codes.clone(), runs: start(part)..start(part + 1) };
    (0..parts).map(part).collect()
}

impl Hashed {
    /// The rows of an output task: those with equal keys in the order of the input.
    fn rows_of(self: Arc<Self>, task: usize) -> Batches {
        let HashTask { id, codes, runs } = self.tasks[task].clone();
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
