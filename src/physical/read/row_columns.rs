//! Columns that say which row of which file a row is.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use super::files::FilesOfTask;
use crate::block::row_random;
use crate::token::text_fingerprint;

/// A column of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowColumn {
    /// The column of this number of the scan.
    OfScan(usize),
    /// The number of the row in its file, from 0 on.
    Number,
    /// A number that follows from the path of the file and the number of the row.
    Hash,
}

/// The columns of a read that adds some to those of its scan. Each of its tasks reads rows of one file that follow each
/// other there.
#[derive(Debug)]
pub(crate) struct RowColumns {
    pub(crate) columns: Vec<RowColumn>,
    pub(crate) schema: SchemaRef,
}

impl RowColumns {
    /// A batch of a task, before which the task gave `before` rows, with these columns.
    pub(super) fn add(&self, files: &FilesOfTask, before: usize, batch: &RecordBatch) -> Result<RecordBatch> {
        let first = (files.first_row + before) as u64;
        let numbers = || first..first + batch.num_rows() as u64;
        let file = text_fingerprint(&files.paths);
        let column = |column: &RowColumn| -> ArrayRef {
            match column {
                RowColumn::OfScan(place) => Arc::clone(batch.column(*place)),
                RowColumn::Number => Arc::new(UInt64Array::from_iter_values(numbers())),
                RowColumn::Hash => {
                    Arc::new(UInt64Array::from_iter_values(numbers().map(|row| row_random(0, file, row))))
                }
            }
        };
        let columns = self.columns.iter().map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}
