//! CSV, with a header line in each file.

use std::any::Any;
use std::io::Write;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::Writer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::config::CsvOptions;
use datafusion::common::file_options::csv_writer::CsvWriterOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::{CsvFormat, CsvFormatFactory};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

use super::format::{EncodeRows, WriteFormat};
use super::known::KnownFormat;

/// How names of CSV files end.
pub(crate) const CSV_EXTENSIONS: &[&str] = &["csv"];

pub(super) fn known() -> KnownFormat {
    KnownFormat::new(CsvFormatFactory::new(), writer_of)
}

fn writer_of(format: &dyn FileFormat) -> Option<Arc<dyn WriteFormat>> {
    let format: &dyn Any = format;
    Some(Arc::new(Csv(format.downcast_ref::<CsvFormat>()?.options().clone())))
}

#[derive(Debug)]
struct Csv(CsvOptions);

impl WriteFormat for Csv {
    fn name(&self) -> &'static str {
        "CSV"
    }

    fn extensions(&self) -> &'static [&'static str] {
        CSV_EXTENSIONS
    }

    fn compression(&self) -> FileCompressionType {
        self.0.compression.into()
    }

    fn encoder(
        &self,
        schema: &SchemaRef,
        file: Box<dyn Write + Send>,
        _buffer_bytes: usize,
    ) -> Result<Box<dyn EncodeRows>> {
        let options = CsvWriterOptions::try_from(&self.0)?.writer_options;
        Ok(Box::new(CsvRows { writer: options.build(file), schema: Arc::clone(schema), rows: 0 }))
    }
}

struct CsvRows {
    writer: Writer<Box<dyn Write + Send>>,
    schema: SchemaRef,
    rows: usize,
}

impl EncodeRows for CsvRows {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.rows += rows.num_rows();
        Ok(self.writer.write(rows)?)
    }

    fn finish(mut self: Box<Self>) -> Result<usize> {
        // A file without rows still says which columns there are.
        self.writer.write(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
        Ok(self.rows)
    }
}
