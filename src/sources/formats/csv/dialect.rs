//! How CSV is written: what separates values, quotes them, and ends rows.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::common::Result;
use datafusion::common::config::CsvOptions;

use crate::error::ErrorContext;
use crate::sources::formats::decimals::{rounded, with_decoded_decimals};

/// What Arrow infers columns with.
pub(super) fn format_of(options: &CsvOptions) -> Format {
    let mut format = Format::default().with_delimiter(options.delimiter).with_quote(options.quote);
    if let Some(escape) = options.escape {
        format = format.with_escape(escape);
    }
    if let Some(comment) = options.comment {
        format = format.with_comment(comment);
    }
    if let Some(terminator) = options.terminator {
        format = format.with_terminator(terminator);
    }
    format.with_truncated_rows(options.truncated_rows.unwrap_or(false))
}

/// What Arrow decodes rows with, of text without a header. [`typed`] makes them rows of these columns.
pub(super) fn decoder_of(options: &CsvOptions, columns: &SchemaRef, batch_size: usize) -> ReaderBuilder {
    ReaderBuilder::new(with_decoded_decimals(columns)).with_format(format_of(options)).with_batch_size(batch_size)
}

/// Decoded rows with the types of their columns.
pub(super) fn typed(rows: RecordBatch, columns: &SchemaRef) -> Result<RecordBatch> {
    if rows.schema_ref() == columns {
        return Ok(rows);
    }
    let typed = |(column, field): (&ArrayRef, &FieldRef)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        false => rounded(column, field.data_type()).while_doing(|| format!("reading column '{}'", field.name())),
    };
    let typed = rows.columns().iter().zip(columns.fields()).map(typed).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(columns), typed, &options)?)
}
