//! A call of a function on batches of the size that it asked for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{RecordBatch, new_null_array};
use datafusion::arrow::datatypes::{Field, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::batcher::Batcher;
use super::diverted::DivertedOfTask;
use super::push::{Push, push_stream};
use super::{MapStep, StepTask};
use crate::config::BlockyardOptions;
use crate::error::{ErrorContext, one_message};
use crate::functions::{BatchSize, Failures, FunctionRef, OnError};
use crate::physical::tasks::stream_of;
use crate::physical::tasks::{Retries, is_of_data};
use crate::runtime::{UnderWay, holding_up};
use crate::store::BlockStore;

/// Calls a function.
#[derive(Debug)]
pub(crate) struct FunctionStep {
    call: Arc<Call>,
    batch_size: BatchSize,
    target_block_bytes: usize,
    input_schema: SchemaRef,
    /// Calls of an async function at once, in each task.
    max_concurrency: usize,
    /// Columns of whose values each call gets the rows, instead of a batch of some size, and how many at most.
    groups: Option<(Arc<[usize]>, usize)>,
}

/// What is called, and which failures are tolerated.
#[derive(Debug, Clone)]
struct Call {
    operator: &'static str,
    function: FunctionRef,
    schema: SchemaRef,
    failures: Failures,
    /// Whether the last call, of whatever task, took long.
    is_slow: Arc<AtomicBool>,
}

impl FunctionStep {
    /// `operator` is Ray's name for it, like `MapBatches`. Whole blocks end at `target_block_bytes`.
    pub(crate) fn new(
        operator: &'static str,
        function: FunctionRef,
        batch_size: BatchSize,
        target_block_bytes: usize,
        input_schema: SchemaRef,
        schema: SchemaRef,
    ) -> Self {
        let call =
            Arc::new(Call { operator, function, schema, failures: Failures::default(), is_slow: Arc::default() });
        Self { call, batch_size, target_block_bytes, input_schema, max_concurrency: 1, groups: None }
    }

    /// The same with at most so many calls of an async function at once in each task.
    pub(crate) fn with_max_concurrency(mut self, most: usize) -> Self {
        self.max_concurrency = most.max(1);
        self
    }

    /// The same for groups of neighbouring rows with equal values in the columns `keys`, those of more than `max_rows`
    /// in pieces.
    pub(crate) fn with_groups(mut self, keys: Vec<usize>, max_rows: usize) -> Self {
        self.groups = Some((keys.into(), max_rows));
        self
    }

    /// The same, which tolerates failures.
    pub(crate) fn with_failures(mut self, failures: Failures) -> Self {
        self.call = Arc::new(Call { failures, ..self.call.as_ref().clone() });
        self
    }
}

impl MapStep for FunctionStep {
    fn name(&self) -> String {
        self.call.name()
    }

    fn schema(&self) -> &SchemaRef {
        &self.call.schema
    }

    fn diverts(&self) -> bool {
        matches!(self.call.failures.on_error, OnError::Divert(_))
    }

    fn prepare(&self) -> Result<()> {
        self.call.function.prepare().while_doing(|| format!("building {}", self.name()))
    }

    fn is_deterministic(&self) -> bool {
        self.call.function.is_deterministic()
    }

    /// What is tolerated is counted, and kept, in one process.
    fn said(&self) -> Option<String> {
        let Self { batch_size, target_block_bytes, max_concurrency, groups, .. } = self;
        let is_strict = matches!(self.call.failures.on_error, OnError::Fail);
        is_strict.then(|| format!("{} {batch_size:?} {target_block_bytes} {max_concurrency} {groups:?}", self.name()))
    }

    fn cardinality(&self) -> CardinalityEffect {
        // Rows for which it fails may be left out.
        match self.call.operator == "Filter" || self.call.function.preserves_row_count() {
            true => CardinalityEffect::LowerEqual,
            false => CardinalityEffect::Unknown,
        }
    }

    fn keeps_first(&self, _rows: usize) -> bool {
        self.call.operator != "Filter"
            && self.call.function.preserves_row_count()
            && matches!(self.call.failures.on_error, OnError::Fail)
    }

    fn run(&self, batches: SendableRecordBatchStream, task: StepTask) -> Result<SendableRecordBatchStream> {
        let diverted = match &self.call.failures.on_error {
            OnError::Divert(name) => Some(Mutex::new(DivertedOfTask::begin(name, &task, &self.input_schema)?)),
            _ => None,
        };
        let options = BlockyardOptions::from_task(&task.context);
        let retries = Retries::of_maps(&options);
        let schema = Arc::clone(&self.input_schema);
        let batcher = match &self.groups {
            Some((keys, max_rows)) => {
                let reserved = BlockStore::of_task(&task.context)?.working_set(&task.owner, 0)?;
                Batcher::groups(Arc::clone(keys), *max_rows, schema, Some(reserved))
            }
            None => Batcher::new(self.batch_size, self.target_block_bytes, schema),
        };
        let caller = Caller { call: Arc::clone(&self.call), retries, task: task.clone(), diverted };
        let schema = Arc::clone(self.schema());
        Ok(match self.call.function.is_async() {
            true => calls_in_flight(schema, batches, batcher, caller, self.max_concurrency, options.preserve_order),
            false => {
                let push = FunctionPush { caller, next_row: 0, batcher };
                push_stream(schema, batches, &task, push)
            }
        })
    }
}

impl Call {
    fn name(&self) -> String {
        format!("{}({})", self.operator, self.function.name())
    }

    /// Calls the function once. What it returns must be what was planned; the second error is of a function that keeps
    /// to nothing, for whatever rows.
    async fn once(&self, batch: RecordBatch) -> std::result::Result<RecordBatch, Failed> {
        let rows = batch.num_rows();
        let _under_way = UnderWay::begin();
        let returned = match self.function.is_async() {
            true => self.function.call_async(batch).await,
            false => self.function.call(batch),
        };
        let returned = returned.map_err(|e| (e, true))?;
        if self.function.preserves_row_count() && returned.num_rows() != rows {
            let error = exec_err!(
                "function '{}' returned {} rows for {rows}, but is declared to keep their number",
                self.function.name(),
                returned.num_rows()
            );
            return error.map_err(|e| (e, false));
        }
        self.function.conform(returned, &self.schema).map_err(|e| (e, false))
    }

    /// A row with nulls, but for the columns that it came with. Nothing for a filter.
    fn nulls_for(&self, row: &RecordBatch) -> Result<Option<RecordBatch>> {
        if self.operator == "Filter" {
            return Ok(None);
        }
        let column = |field: &Arc<Field>| match row.column_by_name(field.name()) {
            Some(column) if column.data_type() == field.data_type() => Arc::clone(column),
            _ => new_null_array(field.data_type(), 1),
        };
        let columns = self.schema.fields().iter().map(column).collect();
        Ok(Some(RecordBatch::try_new(Arc::clone(&self.schema), columns)?))
    }
}

/// A failed call, and whether other rows could succeed.
type Failed = (DataFusionError, bool);

/// Calls a function for one task. Where the function is not async, none of its futures ever waits.
struct Caller {
    call: Arc<Call>,
    retries: Retries,
    task: StepTask,
    diverted: Option<Mutex<DivertedOfTask>>,
}

impl Caller {
    /// What comes of a batch, whose first row is the task's `first`.
    async fn call(&self, batch: RecordBatch, first: usize) -> Result<Vec<RecordBatch>> {
        let rows = batch.num_rows();
        let puts_up = self.call.failures.on_error != OnError::Fail;
        self.task.rows.seen.fetch_add(rows as u64, Relaxed);
        // A function may drop its input before it has its output; it is kept only where it may be needed again.
        let kept = (puts_up || self.retries.any()).then(|| batch.clone());
        let mut out = Vec::new();
        let result = match (self.attempt(batch, kept.as_ref()).await, kept) {
            (Ok(returned), _) => {
                out.push(returned);
                Ok(())
            }
            (Err((e, true)), Some(kept)) if puts_up && is_of_data(&e) => {
                self.without_bad_rows(kept, first, e, &mut out).await
            }
            (Err((e, _)), _) => Err(e),
        };
        let doing =
            || format!("running {} on rows {first}..{} of task {}", self.call.name(), first + rows, self.task.id);
        result.and_then(|()| self.check_budget(false)).while_doing(doing)?;
        Ok(out)
    }

    /// Calls the function, again where the error is worth it and the rows were `kept`.
    async fn attempt(
        &self,
        batch: RecordBatch,
        kept: Option<&RecordBatch>,
    ) -> std::result::Result<RecordBatch, Failed> {
        let mut result = self.call.once(batch).await;
        for attempt in 0.. {
            match (&result, kept) {
                (Err((e, _)), Some(kept)) if self.retries.again(e, attempt) => {
                    self.task.log.retried(e);
                    result = self.call.once(kept.clone()).await;
                }
                _ => break,
            }
        }
        result
    }

    /// What the function returns for the rows of a batch for which it does not fail.
    async fn without_bad_rows(
        &self,
        batch: RecordBatch,
        first: usize,
        error: DataFusionError,
        out: &mut Vec<RecordBatch>,
    ) -> Result<()> {
        // Parts of the batch, the first of them last: with the error for those that have failed.
        let mut parts = vec![(batch, first, Some(error))];
        while let Some((part, first, error)) = parts.pop() {
            let rows = part.num_rows();
            let error = match error {
                Some(error) => error,
                None => match self.attempt(part.clone(), Some(&part)).await {
                    Ok(returned) => {
                        out.push(returned);
                        continue;
                    }
                    Err((e, true)) if is_of_data(&e) => e,
                    Err((e, _)) => return Err(e),
                },
            };
            if rows <= 1 {
                self.row_failed(&part, first, &error, out)?;
                continue;
            }
            let half = rows / 2;
            parts.push((part.slice(half, rows - half), first + half, None));
            parts.push((part.slice(0, half), first, None));
        }
        Ok(())
    }

    fn row_failed(
        &self,
        row: &RecordBatch,
        place: usize,
        error: &DataFusionError,
        out: &mut Vec<RecordBatch>,
    ) -> Result<()> {
        self.task.log.row_failed(error);
        self.task.rows.failed.fetch_add(1, Relaxed);
        self.check_budget(false).while_doing(|| format!("handling: {}", one_message(error)))?;
        match (&self.call.failures.on_error, &self.diverted) {
            (OnError::Null, _) => out.extend(self.call.nulls_for(row)?),
            (OnError::Divert(_), Some(diverted)) => diverted.lock().add(row, place, error, &self.task)?,
            _ => {}
        }
        Ok(())
    }

    fn check_budget(&self, task_ends: bool) -> Result<()> {
        let Some(most) = self.call.failures.max_errors else {
            return Ok(());
        };
        let (failed, seen) = (self.task.rows.failed.load(Relaxed), self.task.rows.seen.load(Relaxed));
        match most.is_exceeded(failed, seen, task_ends) {
            true => {
                self.task.log.is_over_budget();
                exec_err!("{} failed for {failed} of {seen} rows, more than max_errors = {most}", self.call.name())
            }
            false => Ok(()),
        }
    }

    /// The task has no more rows.
    fn finish(&self) -> Result<()> {
        self.give_up()?;
        self.check_budget(true)
    }

    /// The task sees no more rows; what it has diverted stays.
    fn give_up(&self) -> Result<()> {
        match &self.diverted {
            Some(diverted) => diverted.lock().put(&self.task),
            None => Ok(()),
        }
    }
}

/// Calls of a function that holds up its thread.
struct FunctionPush {
    caller: Caller,
    next_row: usize,
    batcher: Batcher,
}

/// A call that takes longer should not hold up a thread on which others wait.
const SLOW: Duration = Duration::from_millis(10);

impl FunctionPush {
    fn call(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        let (first, began) = (self.next_row, Instant::now());
        self.next_row += batch.num_rows();
        let call = || self.caller.call(batch, first).now_or_never();
        let is_slow = &self.caller.call.is_slow;
        let returned = if is_slow.load(Relaxed) { holding_up(call) } else { call() };
        is_slow.store(began.elapsed() > SLOW, Relaxed);
        match returned {
            Some(returned) => out.extend(returned?),
            None => return internal_err!("a function that is not async waited"),
        }
        Ok(())
    }
}

impl Push for FunctionPush {
    fn push(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        self.batcher.push(batch);
        while let Some(batch) = self.batcher.next(false)? {
            self.call(batch, out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        while let Some(batch) = self.batcher.next(true)? {
            self.call(batch, out)?;
        }
        self.caller.finish()
    }

    fn give_up(&mut self) -> Result<()> {
        self.caller.give_up()
    }
}

/// What comes of calls of an async function, at most `most` of them at once, in order or as they come.
fn calls_in_flight(
    schema: SchemaRef,
    batches: SendableRecordBatchStream,
    batcher: Batcher,
    caller: Caller,
    most: usize,
    ordered: bool,
) -> SendableRecordBatchStream {
    let caller = Arc::new(caller);
    let calling = Arc::clone(&caller);
    // Errors of the input are not the function's, and no reason to give up.
    let input_failed = Arc::new(AtomicBool::new(false));
    let sized = stream::try_unfold(
        (batches, batcher, 0, false, Arc::clone(&input_failed)),
        |(mut batches, mut batcher, first, mut ended, failed)| async move {
            loop {
                if let Some(batch) = batcher.next(ended)? {
                    let next = first + batch.num_rows();
                    return Ok(Some(((batch, first), (batches, batcher, next, ended, failed))));
                }
                if ended {
                    return Ok(None);
                }
                match batches.try_next().await {
                    Ok(Some(batch)) if batch.num_rows() == 0 => {}
                    Ok(Some(batch)) => batcher.push(batch),
                    Ok(None) => ended = true,
                    Err(e) => {
                        failed.store(true, Relaxed);
                        return Err(e);
                    }
                }
            }
        },
    );
    let calls = sized.map_ok(move |(batch, first)| {
        let caller = Arc::clone(&calling);
        async move { caller.call(batch, first).await }
    });
    let returned = if ordered { calls.try_buffered(most).boxed() } else { calls.try_buffer_unordered(most).boxed() };
    let ends = Arc::clone(&caller);
    let last = stream::once(async move { ends.finish().map(|()| Vec::new()) });
    let flat = returned.chain(last).map_ok(|batches| stream::iter(batches.into_iter().map(Ok))).try_flatten();
    // After an error nothing comes; a task that may give up ends there.
    let until_error = stream::unfold(Some(flat.boxed()), move |flat| {
        let (caller, input_failed) = (Arc::clone(&caller), Arc::clone(&input_failed));
        async move {
            let mut flat = flat?;
            match flat.next().await? {
                Ok(batch) => Some((Ok(batch), Some(flat))),
                Err(e) if !input_failed.load(Relaxed) && caller.task.log.may_give_up(&e, &caller.task.context) => {
                    caller.give_up().err().map(|e| (Err(e), None))
                }
                Err(e) => Some((Err(e), None)),
            }
        }
    });
    let full = until_error.try_filter(|batch| std::future::ready(batch.num_rows() > 0));
    stream_of(schema, full.boxed())
}
