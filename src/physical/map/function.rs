//! A call of a function on batches of the size that it asked for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array, new_null_array};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::execution::SendableRecordBatchStream;

use super::batcher::Batcher;
use super::push::{Push, push_stream};
use super::{MapStep, StepTask};
use crate::block::Block;
use crate::config::BlockyardOptions;
use crate::error::{ErrorContext, one_message};
use crate::functions::{BatchSize, Failures, FunctionRef, OnError};
use crate::physical::failures::{Retries, is_of_data};
use crate::store::{BlockStore, NextUse, Owner, QueryPool};

/// Calls a function.
#[derive(Debug)]
pub(crate) struct FunctionStep {
    call: Arc<Call>,
    batch_size: BatchSize,
    target_block_bytes: usize,
    input_schema: SchemaRef,
}

/// What is called, and what is put up with.
#[derive(Debug, Clone)]
struct Call {
    operator: &'static str,
    function: FunctionRef,
    schema: SchemaRef,
    failures: Failures,
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
        let call = Arc::new(Call { operator, function, schema, failures: Failures::default() });
        Self { call, batch_size, target_block_bytes, input_schema }
    }

    /// The same, which puts up with failures.
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

    fn prepare(&self) -> Result<()> {
        self.call.function.prepare().while_doing(|| format!("building {}", self.name()))
    }

    fn run(&self, batches: SendableRecordBatchStream, task: StepTask) -> Result<SendableRecordBatchStream> {
        let diverted = match &self.call.failures.on_error {
            OnError::Divert(name) => Some(DivertedOfTask::begin(name, &task, &self.input_schema)?),
            _ => None,
        };
        let push = FunctionPush {
            call: Arc::clone(&self.call),
            retries: Retries::of_maps(&BlockyardOptions::from_task(&task.context)),
            task,
            next_row: 0,
            batcher: Batcher::new(self.batch_size, self.target_block_bytes, Arc::clone(&self.input_schema)),
            diverted,
        };
        let task = push.task.clone();
        Ok(push_stream(Arc::clone(self.schema()), batches, &task, push))
    }
}

impl Call {
    fn name(&self) -> String {
        format!("{}({})", self.operator, self.function.name())
    }

    /// Calls the function once. What it returns must be what was planned; the second error is of a function that keeps to
    /// nothing, for whatever rows.
    fn once(&self, batch: RecordBatch) -> std::result::Result<RecordBatch, (DataFusionError, bool)> {
        let rows = batch.num_rows();
        let returned = self.function.call(batch).map_err(|e| (e, true))?;
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

struct FunctionPush {
    call: Arc<Call>,
    retries: Retries,
    task: StepTask,
    next_row: usize,
    batcher: Batcher,
    diverted: Option<DivertedOfTask>,
}

/// A failed call, and whether other rows could succeed.
type Failed = (DataFusionError, bool);

impl FunctionPush {
    fn call(&mut self, batch: RecordBatch, out: &mut VecDeque<RecordBatch>) -> Result<()> {
        let first = self.next_row;
        self.next_row += batch.num_rows();
        let puts_up = self.call.failures.on_error != OnError::Fail;
        self.task.rows.seen.fetch_add(batch.num_rows() as u64, Relaxed);
        // A function may drop its input before it has its output; it is kept only where it may be needed again.
        let kept = (puts_up || self.retries.any()).then(|| batch.clone());
        let result = match (self.attempt(batch, kept.as_ref()), kept) {
            (Ok(returned), _) => {
                out.push_back(returned);
                Ok(())
            }
            (Err((e, true)), Some(kept)) if puts_up && is_of_data(&e) => self.without_bad_rows(kept, first, e, out),
            (Err((e, _)), _) => Err(e),
        };
        let doing =
            || format!("running {} on rows {first}..{} of task {}", self.call.name(), self.next_row, self.task.id);
        result.and_then(|()| self.check_budget(false)).while_doing(doing)
    }

    /// Calls the function, again where the error is worth it and the rows were `kept`.
    fn attempt(&self, batch: RecordBatch, kept: Option<&RecordBatch>) -> std::result::Result<RecordBatch, Failed> {
        let mut result = self.call.once(batch);
        for attempt in 0.. {
            match (&result, kept) {
                (Err((e, _)), Some(kept)) if self.retries.again(e, attempt) => {
                    self.task.log.retried(e);
                    result = self.call.once(kept.clone());
                }
                _ => break,
            }
        }
        result
    }

    /// What the function returns for the rows of a batch for which it does not fail.
    fn without_bad_rows(
        &mut self,
        batch: RecordBatch,
        first: usize,
        error: DataFusionError,
        out: &mut VecDeque<RecordBatch>,
    ) -> Result<()> {
        let rows = batch.num_rows();
        if rows <= 1 {
            return self.row_failed(&batch, first, &error, out);
        }
        for (start, length) in [(0, rows / 2), (rows / 2, rows - rows / 2)] {
            let half = batch.slice(start, length);
            match self.attempt(half.clone(), Some(&half)) {
                Ok(returned) => out.push_back(returned),
                Err((e, true)) if is_of_data(&e) => self.without_bad_rows(half, first + start, e, out)?,
                Err((e, _)) => return Err(e),
            }
        }
        Ok(())
    }

    fn row_failed(
        &mut self,
        row: &RecordBatch,
        place: usize,
        error: &DataFusionError,
        out: &mut VecDeque<RecordBatch>,
    ) -> Result<()> {
        self.task.log.row_failed(error);
        self.task.rows.failed.fetch_add(1, Relaxed);
        if self.check_budget(false).is_err() {
            return self.check_budget(false).while_doing(|| format!("handling: {}", one_message(error)));
        }
        match &self.call.failures.on_error {
            OnError::Null => out.extend(self.call.nulls_for(row)?),
            OnError::Divert(_) => {
                if let Some(diverted) = &mut self.diverted {
                    diverted.add(row, place, error, &self.task)?;
                }
            }
            OnError::Fail | OnError::Skip => {}
        }
        Ok(())
    }

    fn check_budget(&self, task_ends: bool) -> Result<()> {
        let Some(most) = self.call.failures.max_errors else {
            return Ok(());
        };
        let (failed, seen) = (self.task.rows.failed.load(Relaxed), self.task.rows.seen.load(Relaxed));
        match most.is_exceeded(failed, seen, task_ends) {
            true => exec_err!("{} failed for {failed} of {seen} rows, more than max_errors = {most}", self.call.name()),
            false => Ok(()),
        }
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
        if let Some(diverted) = &mut self.diverted {
            diverted.put(&self.task)?;
        }
        self.check_budget(true)
    }
}

/// Rows that a task diverts.
struct DivertedOfTask {
    name: String,
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
}

/// Rows after which they are put into the store.
const DIVERTED_ROWS: usize = 1024;

impl DivertedOfTask {
    fn begin(name: &str, task: &StepTask, input: &SchemaRef) -> Result<Self> {
        let added = [
            Field::new("_error", DataType::Utf8, false),
            Field::new("_file", DataType::Utf8, true),
            Field::new("_row", DataType::UInt64, false),
            Field::new("_task", DataType::Utf8, false),
        ];
        let fields = input.fields().iter().cloned().chain(added.map(Arc::new)).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new(fields));
        let store = BlockStore::of_task(&task.context)?;
        store.diverted().begin(name, QueryPool::query_of(&task.context), &schema);
        Ok(Self { name: name.to_owned(), schema, rows: Vec::new() })
    }

    fn add(&mut self, row: &RecordBatch, place: usize, error: &DataFusionError, task: &StepTask) -> Result<()> {
        let text = |text: Option<&str>| Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let task_id = task.id.to_string();
        let added = [
            text(Some(&one_message(error))),
            text(task.files.as_deref()),
            Arc::new(UInt64Array::from(vec![place as u64])),
            text(Some(&task_id)),
        ];
        let columns = row.columns().iter().cloned().chain(added).collect();
        self.rows.push(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        if self.rows.len() >= DIVERTED_ROWS { self.put(task) } else { Ok(()) }
    }

    fn put(&mut self, task: &StepTask) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        // Copied, so that a row does not keep the batch that it came in.
        let rows = concat_batches(&self.schema, &std::mem::take(&mut self.rows))?;
        let (store, query) = (BlockStore::of_task(&task.context)?, QueryPool::query_of(&task.context));
        let owner = Arc::new(Owner::default());
        owner.describe(query, || format!("Diverted({})", self.name));
        let handle = store.put(Block::new(Arc::clone(&self.schema), vec![rows]), NextUse::Kept, &owner)?;
        store.diverted().add(&self.name, query, &task.id, handle);
        Ok(())
    }
}
