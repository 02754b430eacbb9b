//! How lines of a format become rows.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, new_null_array};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result};

use super::line_ends::line_length;
use crate::error::one_message;

/// How the lines of a format are decoded.
pub(in crate::sources::formats) trait DecodeLines: Send + Sync + 'static {
    /// A decoder of rows with all columns of the files, of up to `most` at once.
    fn decoder(&self, columns: &SchemaRef, most: usize) -> Result<Box<dyn LineDecoder>>;

    /// Bytes of the row at the beginning of a text, with its end: mostly a line. `None` where it does not end there.
    fn row_length(&self, text: &[u8]) -> Option<usize> {
        Some(line_length(text))
    }

    /// Fails where the first row cannot name the columns.
    fn check_header(&self, _row: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Whether a line is a row.
    fn is_row(&self, line: &[u8]) -> bool {
        !line.trim_ascii().is_empty()
    }

    /// What is wrong with a line, where that is sure without decoding it.
    fn misfit(&self, _line: &[u8], _columns: &Schema) -> Option<String> {
        None
    }

    /// Whether a line most likely does not fit, as far as that is seen at a glance.
    fn is_suspect(&self, _line: &[u8], _columns: &Schema) -> bool {
        false
    }

    /// The row of a line that does not fit, with nulls in place of what does not.
    fn with_nulls(&self, _line: &[u8], columns: &SchemaRef) -> Result<RecordBatch> {
        all_null(columns)
    }

    /// What is wrong with a line, for people.
    fn explain(&self, error: &DataFusionError, _columns: &Schema) -> String {
        one_message(error)
    }
}

/// Decodes lines one after the other.
pub(in crate::sources::formats) trait LineDecoder: Send {
    /// The rows of whole lines at the beginning of a text, as many as are decoded at once, and the bytes of the lines.
    fn decode(&mut self, text: &[u8]) -> Result<(RecordBatch, usize)>;

    /// Whether it can go on with other lines after this error of these.
    fn survives(&self, _error: &DataFusionError, _text: &[u8]) -> bool {
        false
    }
}

/// A row without values.
pub(in crate::sources::formats) fn all_null(columns: &SchemaRef) -> Result<RecordBatch> {
    let nulls = columns.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
    Ok(RecordBatch::try_new(Arc::clone(columns), nulls)?)
}
