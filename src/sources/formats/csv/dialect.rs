//! How CSV is written: what separates values, quotes them, and ends rows.

use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::CsvOptions;

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

/// What Arrow decodes rows with, of text without a header.
pub(super) fn decoder_of(options: &CsvOptions, columns: SchemaRef, batch_size: usize) -> ReaderBuilder {
    ReaderBuilder::new(columns).with_format(format_of(options)).with_batch_size(batch_size)
}
