//! A read task that runs.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use futures::{StreamExt, TryStreamExt, stream};

use super::clock::ReadClock;
use super::files::ReadFiles;
use super::late::Trial;
use super::row_columns::RowColumns;
use super::scanning::Scanning;
use crate::error::ErrorContext;
use crate::physical::tasks::{FailureLog, Retries, pause, stream_of};
use crate::runtime::UnderWay;
use crate::store::WorkingSet;

/// A read task that runs.
pub(super) struct Reading {
    pub(super) name: String,
    pub(super) scanning: Arc<Scanning>,
    /// How it reads, where there are two ways.
    pub(super) trial: Option<Trial>,
    /// Whether it would give other rows when it runs again.
    pub(super) filters_change: bool,
    pub(super) clock: ReadClock,
    pub(super) row_columns: Option<Arc<RowColumns>>,
    pub(super) files: ReadFiles,
    pub(super) index: usize,
    /// The partition of the input that the task reads.
    pub(super) partition: usize,
    pub(super) context: Arc<TaskContext>,
    pub(super) batches: SendableRecordBatchStream,
    /// Rows that were given.
    pub(super) rows: usize,
    pub(super) attempt: usize,
    /// Whether its files were found to be those that were planned for.
    pub(super) is_checked: bool,
    pub(super) retries: Retries,
    pub(super) log: Arc<FailureLog>,
    pub(super) _working_set: WorkingSet,
}

impl Reading {
    /// Its rows.
    pub(super) fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.row_columns.as_ref().map_or_else(|| self.batches.schema(), |rows| Arc::clone(&rows.schema));
        stream_of(schema, stream::try_unfold(self, Self::next).boxed())
    }

    /// The next batch of files that are what they were: they are looked at before the first batch and after the last.
    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if !self.is_checked {
            self.files.check(self.index, &self.context).await?;
            self.is_checked = true;
        }
        let batch = UnderWay::during(self.clock.during(self.batches.try_next())).await?;
        match &batch {
            Some(batch) => self.clock.give(batch.num_rows()),
            None => {
                self.files.check(self.index, &self.context).await?;
                self.scanning.end(self.trial.as_ref(), self.partition, self.rows, &self.clock);
            }
        }
        Ok(batch)
    }

    /// A batch that comes behind those that were given, with the columns that the read adds.
    fn with_row_columns(&self, batch: RecordBatch) -> Result<RecordBatch> {
        match (&self.row_columns, self.files.of_task(self.index)) {
            (Some(columns), Some(files)) => columns.add(&files, self.rows, &batch),
            (Some(_), None) => internal_err!("rows of no file are numbered"),
            (None, _) => Ok(batch),
        }
    }

    /// The next batch. Where the error is worth it, it reads again, up to the row at which it was.
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        let mut passed = self.rows;
        loop {
            let error = match self.next_batch().await {
                Ok(None) => return Ok(None),
                Ok(Some(batch)) => {
                    let rows = batch.num_rows();
                    let skipped = rows.min(self.rows - passed);
                    passed += skipped;
                    if skipped == rows && (rows > 0 || passed < self.rows) {
                        continue;
                    }
                    let batch = if skipped == 0 { batch } else { batch.slice(skipped, rows - skipped) };
                    let batch = self.with_row_columns(batch)?;
                    self.rows += rows - skipped;
                    return Ok(Some((batch, self)));
                }
                Err(e) => e,
            };
            let resumes = self.rows == 0 || !self.filters_change;
            if resumes && self.retries.again(&error, self.attempt) {
                self.log.retried(&error);
                pause(self.attempt, self.index as u64).await;
                self.attempt += 1;
                self.batches = self.scanning.execute(self.trial.as_ref(), self.partition, &self.context)?;
                passed = 0;
                continue;
            }
            let over = self.files.of_task(self.index).map_or(String::new(), |f| format!(" over {}", f.paths));
            let error = Err(error).while_doing(|| format!("running {} task {}{over}", self.name, self.index));
            return match error {
                Err(e) if self.log.may_give_up(&e, &self.context) => Ok(None),
                error => error,
            };
        }
    }
}
