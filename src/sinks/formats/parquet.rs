//! Parquet. A row group ends by the bytes of its columns, not only by its rows.

use std::any::Any;
use std::io::Write;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::{ParquetFormat, ParquetFormatFactory};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterPropertiesBuilder;

use super::format::{EncodeRows, WriteFormat};
use super::known::KnownFormat;
use crate::runtime::holding_up;

mod dictionaries;

/// How names of Parquet files end.
pub(crate) const PARQUET_EXTENSIONS: &[&str] = &["parquet"];

pub(super) fn known() -> KnownFormat {
    KnownFormat::new(ParquetFormatFactory::new(), writer_of)
}

fn writer_of(format: &dyn FileFormat) -> Option<Arc<dyn WriteFormat>> {
    let format: &dyn Any = format;
    Some(Arc::new(Parquet(format.downcast_ref::<ParquetFormat>()?.options().clone())))
}

#[derive(Debug)]
struct Parquet(TableParquetOptions);

impl WriteFormat for Parquet {
    fn name(&self) -> &'static str {
        "Parquet"
    }

    fn extensions(&self) -> &'static [&'static str] {
        PARQUET_EXTENSIONS
    }

    fn streams(&self) -> bool {
        true
    }

    fn for_rows(&self, rows: &[RecordBatch], file_rows: usize) -> Result<Option<Arc<dyn WriteFormat>>> {
        Ok(Some(Arc::new(Self(dictionaries::of_rows(&self.0, rows, file_rows)?))))
    }

    fn encoder(
        &self,
        schema: &SchemaRef,
        file: Box<dyn Write + Send>,
        buffer_bytes: usize,
    ) -> Result<Box<dyn EncodeRows>> {
        let mut options = self.0.clone();
        options.arrow_schema(schema);
        let properties = WriterPropertiesBuilder::try_from(&options)?.build();
        let writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(properties))?;
        Ok(Box::new(ParquetRows { writer, buffer_bytes }))
    }
}

struct ParquetRows {
    writer: ArrowWriter<Box<dyn Write + Send>>,
    buffer_bytes: usize,
}

impl EncodeRows for ParquetRows {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.writer.write(rows)?;
        if self.writer.memory_size() > self.buffer_bytes {
            holding_up(|| self.writer.flush())?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<usize> {
        holding_up(|| self.writer.flush())?;
        let rows: i64 = self.writer.flushed_row_groups().iter().map(|group| group.num_rows()).sum();
        holding_up(|| self.writer.close())?;
        Ok(rows as usize)
    }
}
