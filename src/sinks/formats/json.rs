//! JSON, one object per line.

use std::any::Any;
use std::io::Write;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::common::Result;
use datafusion::common::config::JsonOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::{JsonFormat, JsonFormatFactory};

use super::format::{EncodeRows, WriteFormat};
use super::known::KnownFormat;

/// How names of JSON files end.
pub(crate) const JSON_EXTENSIONS: &[&str] = &["json", "jsonl", "ndjson"];

pub(super) fn known() -> KnownFormat {
    KnownFormat::new(JsonFormatFactory::new(), writer_of)
}

fn writer_of(format: &dyn FileFormat) -> Option<Arc<dyn WriteFormat>> {
    let format: &dyn Any = format;
    Some(Arc::new(Json(format.downcast_ref::<JsonFormat>()?.options().clone())))
}

#[derive(Debug)]
struct Json(JsonOptions);

impl WriteFormat for Json {
    fn name(&self) -> &'static str {
        "JSON"
    }

    fn extensions(&self) -> &'static [&'static str] {
        JSON_EXTENSIONS
    }

    fn compression(&self) -> FileCompressionType {
        self.0.compression.into()
    }

    fn encoder(
        &self,
        _schema: &SchemaRef,
        file: Box<dyn Write + Send>,
        _buffer_bytes: usize,
    ) -> Result<Box<dyn EncodeRows>> {
        Ok(Box::new(JsonRows { writer: LineDelimitedWriter::new(file), rows: 0 }))
    }
}

struct JsonRows {
    writer: LineDelimitedWriter<Box<dyn Write + Send>>,
    rows: usize,
}

impl EncodeRows for JsonRows {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.rows += rows.num_rows();
        Ok(self.writer.write(rows)?)
    }

    fn finish(mut self: Box<Self>) -> Result<usize> {
        self.writer.finish()?;
        Ok(self.rows)
    }
}
