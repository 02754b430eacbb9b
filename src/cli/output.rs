//! Writes results in the format asked for, as they stream.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::json::writer::{JsonArray, LineDelimited};
use datafusion::arrow::json::{Writer as JsonWriter, WriterBuilder as JsonBuilder};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::{DataFusionError, Result, config_err};
use datafusion::parquet::arrow::ArrowWriter;

use super::arguments::Format;

/// Rows that one printed table has at most; a longer result is several tables.
const TABLE_ROWS: usize = 10_000;

type Out = Box<dyn Write + Send>;

/// One result that is being written.
pub(super) enum Output {
    Table { out: Out, schema: SchemaRef, pending: Vec<RecordBatch>, printed: bool },
    Text(Box<datafusion::arrow::csv::Writer<Out>>),
    Json(JsonWriter<Out, JsonArray>),
    Lines(JsonWriter<Out, LineDelimited>),
    Arrow(Box<StreamWriter<Out>>),
    Parquet(Box<ArrowWriter<Out>>),
}

impl Output {
    /// Begins a result of these columns on standard output, or in a file.
    pub(super) fn begin(format: Format, file: Option<&PathBuf>, schema: SchemaRef) -> Result<Self> {
        let out: Out = match file {
            Some(path) => Box::new(BufWriter::new(
                File::create(path)
                    .map_err(|e| DataFusionError::Execution(format!("cannot write to '{}': {e}", path.display())))?,
            )),
            None if format == Format::Parquet => return config_err!("--format parquet needs --output FILE"),
            None => Box::new(BufWriter::new(std::io::stdout())),
        };
        Ok(match format {
            Format::Table => Self::Table { out, schema, pending: Vec::new(), printed: false },
            Format::Csv => Self::Text(Box::new(WriterBuilder::new().build(out))),
            Format::Tsv => Self::Text(Box::new(WriterBuilder::new().with_delimiter(b'\t').build(out))),
            Format::Json => Self::Json(JsonBuilder::new().with_explicit_nulls(true).build(out)),
            Format::Ndjson => Self::Lines(JsonBuilder::new().with_explicit_nulls(true).build(out)),
            Format::Arrow => Self::Arrow(Box::new(StreamWriter::try_new(out, &schema)?)),
            Format::Parquet => Self::Parquet(Box::new(ArrowWriter::try_new(out, schema, None)?)),
        })
    }

    /// Writes the next rows.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match self {
            Self::Table { out, pending, printed, .. } => {
                pending.push(batch.clone());
                if pending.iter().map(RecordBatch::num_rows).sum::<usize>() >= TABLE_ROWS {
                    writeln!(out, "{}", pretty_format_batches(pending)?)?;
                    pending.clear();
                    *printed = true;
                }
            }
            Self::Text(writer) => writer.write(batch)?,
            Self::Json(writer) => writer.write(batch)?,
            Self::Lines(writer) => writer.write(batch)?,
            Self::Arrow(writer) => writer.write(batch)?,
            Self::Parquet(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    /// Ends the result.
    pub(super) fn end(self, rows: usize, schema: &SchemaRef) -> Result<()> {
        match self {
            Self::Table { mut out, schema, mut pending, printed } => {
                if pending.is_empty() && !printed {
                    pending.push(RecordBatch::new_empty(schema));
                }
                if !pending.is_empty() {
                    writeln!(out, "{}", pretty_format_batches(&pending)?)?;
                }
                out.flush()?;
            }
            Self::Text(mut writer) => {
                if rows == 0 {
                    writer.write(&RecordBatch::new_empty(SchemaRef::clone(schema)))?;
                }
                writer.into_inner().flush()?;
            }
            Self::Json(mut writer) => {
                writer.finish()?;
                let mut out = writer.into_inner();
                writeln!(out)?;
                out.flush()?;
            }
            Self::Lines(mut writer) => {
                writer.finish()?;
                writer.into_inner().flush()?;
            }
            Self::Arrow(mut writer) => {
                writer.finish()?;
                writer.into_inner()?.flush()?;
            }
            Self::Parquet(writer) => {
                writer.into_inner()?.flush()?;
            }
        }
        Ok(())
    }
}
