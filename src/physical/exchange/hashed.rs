//! Rows with equal keys in one block each, out of core.
//!
//! A row's code is the hash of its keys, and a block is a range of codes: as many ranges as are asked for, or so many that
//! each has about `target_shuffle_max_block_size` of the bytes that were really written.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt32Array};
use datafusion::arrow::compute::{SortOptions, concat_batches, take_record_batch};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::{DataFusionError, Result, resources_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use super::ordered::{RowOrder, Together};
use super::runs::{Coding, Runs, cuts, equal_parts, equal_ranges};
use crate::block::{TaskId, sliced_bytes};
use crate::config::{BlockyardOptions, ByteSize};
use crate::physical::memory::{block_bytes, query_memory};
use crate::physical::stage::StageMetrics;
use crate::runtime::on_io_thread;
use crate::store::WorkingSet;

/// What sorting a block takes: its rows as they come, joined with their keys, and sorted.
const SORT_COPIES: usize = 4;
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
    /// What the rows of a block are sorted by; nothing where they stay as they come.
    sort: Vec<Arc<dyn PhysicalExpr>>,
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
    let sort = if sort { keys } else { Vec::new() };
    Ok(Hashed { runs: Arc::new(runs), tasks, sort, together })
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
        match (self.together.is_of_use(), self.sort.is_empty()) {
            (true, unsorted) => {
                let rows = async move {
                    let range = |task: usize| self.tasks[task].codes.clone();
                    let (ordered, number) = self.together.rows_of(task, &self.runs, range, RowOrder::Input).await?;
                    let rows = ordered.batches(number);
                    if unsorted {
                        return Ok::<_, DataFusionError>(stream::iter(rows).boxed());
                    }
                    let (batches, reserved) = on_io_thread(move || self.sorted(task, rows)).await?;
                    Ok(pieces(batches, reserved))
                };
                stream::once(rows).try_flatten().boxed()
            }
            (false, true) => {
                let Part { codes, runs, .. } = self.tasks[task].clone();
                self.runs.stream(runs, codes)
            }
            (false, false) => {
                let sorted = on_io_thread(move || self.sorted(task, self.batches(task)));
                stream::once(sorted).map_ok(|(batches, reserved)| pieces(batches, reserved)).try_flatten().boxed()
            }
        }
    }

    /// The rows of a task that is read for itself. Blocks.
    fn batches(&self, task: usize) -> impl Iterator<Item = Result<RecordBatch>> {
        let Part { codes, mut runs, .. } = self.tasks[task].clone();
        let read = move || {
            (!runs.is_empty()).then(|| {
                let read = self.runs.read(runs.clone(), &codes);
                // What cannot be read is the last.
                runs.start = read.as_ref().map_or(runs.end, |(_, number)| runs.start + number);
                read.map(|(batches, _)| batches)
            })
        };
        std::iter::from_fn(read).flat_map(|read| match read {
            Ok(batches) => batches.into_iter().map(Ok).collect(),
            Err(e) => vec![Err(e)],
        })
    }

    fn sorted(
        &self,
        task: usize,
        rows: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<(Vec<RecordBatch>, WorkingSet)> {
        let mut reserved = self.runs.store.working_set(&self.runs.owner, 0)?;
        let (mut batches, mut bytes) = (Vec::new(), 0);
        for batch in rows {
            let batch = batch?;
            bytes += sliced_bytes(&batch);
            if !reserved.try_resize(SORT_COPIES * bytes)? {
                return resources_err!(
                    "the rows of block {task} have {} so far, and do not fit in memory {SORT_COPIES} times to be sorted by their \
                     keys; more blocks would help, unless they are of one key",
                    ByteSize(bytes)
                );
            }
            batches.push(batch);
        }
        let rows = concat_batches(&self.runs.schema, &batches)?;
        drop(batches);
        let keys: Vec<_> =
            self.sort.iter().map(|key| key.evaluate(&rows)?.into_array(rows.num_rows())).collect::<Result<_>>()?;
        let options = SortOptions { descending: false, nulls_first: false };
        let fields = keys.iter().map(|key| SortField::new_with_options(key.data_type().clone(), options)).collect();
        let keys = RowConverter::new(fields)?.convert_columns(&keys)?;
        let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
        // Equal keys stay in the order of the input.
        order.sort_by(|a, b| keys.row(*a as usize).cmp(&keys.row(*b as usize)));
        let sorted = take_record_batch(&rows, &UInt32Array::from(order))?;
        let size = self.runs.batch_rows.max(1);
        let starts = (0..sorted.num_rows()).step_by(size);
        let batches = starts.map(|start| sorted.slice(start, size.min(sorted.num_rows() - start))).collect();
        reserved.resize(bytes)?;
        Ok((batches, reserved))
    }
}

fn pieces(batches: Vec<RecordBatch>, reserved: WorkingSet) -> BoxStream<'static, Result<RecordBatch>> {
    stream::iter(batches)
        .map(move |batch| {
            let _held = &reserved;
            Ok(batch)
        })
        .boxed()
}
