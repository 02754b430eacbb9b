//! Rows for which a function failed, on their way to the store.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, plan_err};

use super::StepTask;
use crate::block::Block;
use crate::error::one_message;
use crate::store::{BlockStore, NextUse, Owner, QueryPool};

/// Rows that a task diverts.
pub(super) struct DivertedOfTask {
    name: String,
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
}

/// Rows after which they are put into the store.
const DIVERTED_ROWS: usize = 1024;

impl DivertedOfTask {
    pub(super) fn begin(name: &str, task: &StepTask, input: &SchemaRef) -> Result<Self> {
        let added = [
            Field::new("_error", DataType::Utf8, false),
            Field::new("_file", DataType::Utf8, true),
            Field::new("_row", DataType::UInt64, false),
            Field::new("_task", DataType::Utf8, false),
        ];
        if let Some(taken) = added.iter().find(|field| input.column_with_name(field.name()).is_some()) {
            return plan_err!("rows with a column '{}' cannot be diverted, which gets one of this name", taken.name());
        }
        let fields = input.fields().iter().cloned().chain(added.map(Arc::new)).collect::<Vec<_>>();
        let schema = Arc::new(Schema::new(fields));
        let store = BlockStore::of_task(&task.context)?;
        store.diverted().begin(name, QueryPool::query_of(&task.context), &schema)?;
        Ok(Self { name: name.to_owned(), schema, rows: Vec::new() })
    }

    pub(super) fn add(
        &mut self,
        row: &RecordBatch,
        place: usize,
        error: &DataFusionError,
        task: &StepTask,
    ) -> Result<()> {
        let text = |text: Option<&str>| Arc::new(StringArray::from(vec![text])) as ArrayRef;
        let (files, task_id) = (task.files.as_ref(), task.id.to_string());
        let added = [
            text(Some(&one_message(error))),
            text(files.map(|files| files.paths.as_ref())),
            Arc::new(UInt64Array::from(vec![(files.map_or(0, |files| files.first_row) + place) as u64])),
            text(Some(&task_id)),
        ];
        let columns = row.columns().iter().cloned().chain(added).collect();
        self.rows.push(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        if self.rows.len() >= DIVERTED_ROWS { self.put(task) } else { Ok(()) }
    }

    pub(super) fn put(&mut self, task: &StepTask) -> Result<()> {
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
