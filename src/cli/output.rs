//! Writes results in the format asked for, as they stream.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::json::writer::{JsonArray, LineDelimited};
use datafusion::arrow::json::{Writer as JsonWriter, WriterBuilder as JsonBuilder};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::{DataFusionError, Result, plan_err};

use super::arguments::Format;
use super::destination::{Destination, Staged};
use super::plans::PlanWriter;
use crate::block::compact_views;
use crate::config::BlockyardOptions;
use crate::dataset::DataContext;
use crate::sinks::{EncodeRows, parquet};

/// Rows and bytes that one printed table has at most; a longer result is several tables.
const TABLE_ROWS: usize = 10_000;
const TABLE_BYTES: usize = 4 << 20;

/// A row group of a file is in memory until it is written: so much of the limit, within these bounds.
const ROW_GROUP_PART: usize = 16;
const MIN_ROW_GROUP_BYTES: usize = 1 << 20;
const MAX_ROW_GROUP_BYTES: usize = 32 << 20;

type Out = Box<dyn Write + Send>;

/// How Parquet is written, as the session says.
#[derive(Debug, Clone)]
pub(super) struct ParquetFile {
    options: TableParquetOptions,
    row_group_bytes: usize,
}

impl ParquetFile {
    pub(super) fn of(context: &DataContext) -> Self {
        let state = context.session().state();
        let limit = BlockyardOptions::from_config(state.config_options()).memory_limit.bytes();
        let row_group_bytes = (limit / ROW_GROUP_PART).clamp(MIN_ROW_GROUP_BYTES, MAX_ROW_GROUP_BYTES);
        Self { options: state.default_table_options().parquet, row_group_bytes }
    }
}

/// One result that is being written.
pub(super) struct Output {
    writer: Writer,
    staged: Option<Staged>,
    schema: SchemaRef,
    rows: usize,
}

enum Writer {
    Table { out: Out, pending: Vec<RecordBatch>, printed: bool },
    Plans(PlanWriter),
    Text(Box<datafusion::arrow::csv::Writer<Out>>),
    Json(JsonWriter<Out, JsonArray>),
    Lines(JsonWriter<Out, LineDelimited>),
    Arrow(Box<StreamWriter<Out>>),
    Parquet(Box<dyn EncodeRows>),
}

impl Output {
    /// Begins a result of these columns. Nothing more is written once `stop` is set.
    pub(super) fn begin(
        destination: &Destination,
        file: &ParquetFile,
        schema: SchemaRef,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        let begun = destination.begin().map_err(|e| match &destination.file {
            Some(path) => DataFusionError::Execution(format!("cannot write to '{}': {e}", path.display())),
            None => DataFusionError::IoError(e),
        })?;
        check_names(destination.format, &schema)?;
        let (out, staged) = begun.into_parts(stop);
        let on_terminal = destination.file.is_none() && std::io::stdout().is_terminal();
        let writer = match destination.format {
            Format::Table if on_terminal && PlanWriter::takes(&schema) => Writer::Plans(PlanWriter::new(out)),
            Format::Table => Writer::Table { out, pending: Vec::new(), printed: false },
            Format::Csv => Writer::Text(Box::new(WriterBuilder::new().build(out))),
            Format::Tsv => Writer::Text(Box::new(WriterBuilder::new().with_delimiter(b'\t').build(out))),
            Format::Json => Writer::Json(JsonBuilder::new().with_explicit_nulls(true).build(out)),
            Format::Ndjson => Writer::Lines(JsonBuilder::new().with_explicit_nulls(true).build(out)),
            Format::Arrow => Writer::Arrow(Box::new(StreamWriter::try_new(out, &schema)?)),
            Format::Parquet => {
                let ParquetFile { options, row_group_bytes } = file.clone();
                Writer::Parquet(parquet(options).encoder(&schema, out, row_group_bytes)?)
            }
        };
        Ok(Self { writer, staged, schema, rows: 0 })
    }

    /// Writes the next rows, under the names of the columns of the result.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec())?;
        match &mut self.writer {
            Writer::Table { out, pending, printed } => {
                pending.push(batch);
                if is_long(pending)? {
                    writeln!(out, "{}", pretty_format_batches(pending)?)?;
                    pending.clear();
                    *printed = true;
                }
            }
            Writer::Plans(writer) => writer.write(&batch)?,
            Writer::Text(writer) => writer.write(&batch)?,
            Writer::Json(writer) => writer.write(&batch)?,
            Writer::Lines(writer) => writer.write(&batch)?,
            // All buffers are written, also where views refer to little of them.
            Writer::Arrow(writer) => writer.write(&compact_views(&batch)?)?,
            Writer::Parquet(writer) => writer.write(&batch)?,
        }
        Ok(())
    }

    /// Hands on what was written to whoever reads it, where it is whole. Whether it is.
    pub(super) fn flush(&mut self) -> Result<bool> {
        match &mut self.writer {
            _ if self.staged.is_some() => Ok(false),
            Writer::Arrow(writer) => writer.flush().map(|()| true).map_err(Into::into),
            Writer::Lines(writer) => writer.get_mut().flush().map(|()| true).map_err(Into::into),
            // It does so by itself.
            Writer::Text(_) => Ok(true),
            _ => Ok(false),
        }
    }

    /// Ends the result; returns its rows.
    pub(super) fn end(self) -> Result<usize> {
        match self.writer {
            Writer::Table { mut out, mut pending, printed } => {
                if pending.is_empty() && !printed {
                    pending.push(RecordBatch::new_empty(self.schema));
                }
                if !pending.is_empty() {
                    writeln!(out, "{}", pretty_format_batches(&pending)?)?;
                }
                out.flush()?;
            }
            Writer::Plans(writer) => writer.end()?,
            Writer::Text(mut writer) => {
                if self.rows == 0 {
                    writer.write(&RecordBatch::new_empty(self.schema))?;
                }
                writer.into_inner().flush()?;
            }
            Writer::Json(mut writer) => {
                writer.finish()?;
                let mut out = writer.into_inner();
                writeln!(out)?;
                out.flush()?;
            }
            Writer::Lines(mut writer) => {
                writer.finish()?;
                writer.into_inner().flush()?;
            }
            Writer::Arrow(mut writer) => {
                writer.finish()?;
                writer.into_inner()?.flush()?;
            }
            Writer::Parquet(writer) => {
                writer.finish()?;
            }
        }
        if let Some(staged) = self.staged {
            staged.publish()?;
        }
        Ok(self.rows)
    }
}

/// Fails where values would be told apart by names that are the same.
fn check_names(format: Format, schema: &SchemaRef) -> Result<()> {
    if !matches!(format, Format::Json | Format::Ndjson | Format::Parquet) {
        return Ok(());
    }
    let names: Vec<&String> = schema.fields().iter().map(|field| field.name()).collect();
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        Some((_, name)) => plan_err!(
            "there are two columns '{name}', which {format:?} tells apart by their names alone; name one otherwise, with \
             AS"
        ),
        None => Ok(()),
    }
}

/// Whether rows are enough for a table.
fn is_long(batches: &[RecordBatch]) -> Result<bool> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let mut bytes = 0;
    for column in batches.iter().flat_map(RecordBatch::columns) {
        bytes += column.to_data().get_slice_memory_size()?;
    }
    Ok(rows >= TABLE_ROWS || bytes >= TABLE_BYTES)
}
