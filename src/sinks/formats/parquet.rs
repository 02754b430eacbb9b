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

/// Parquet with these options.
pub(crate) fn parquet(options: TableParquetOptions) -> Arc<dyn WriteFormat> {
    Arc::new(Parquet(options))
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
        Ok(Box::new(ParquetRows { writer, columns: schema.flattened_fields().len(), buffer_bytes }))
    }
}

struct ParquetRows {
    writer: ArrowWriter<Box<dyn Write + Send>>,
    columns: usize,
    buffer_bytes: usize,
}

/// The footer, which stays in memory until the end, has about a kibibyte for each column of each row group. So a column
/// has at least so many encoded bytes in one, and the more the more of them there are: the encoders of five hundred
/// columns are larger than a small buffer before there is a row.
const MIN_CHUNK_BYTES: usize = 4 << 10;
const MAX_MIN_CHUNK_BYTES: usize = 64 << 10;
/// After so many row groups a column has to have as much again.
const MORE_AFTER: usize = 16;

impl ParquetRows {
    /// The fewest encoded bytes of a row group that is worth its part of the footer.
    fn min_group_bytes(&self) -> usize {
        let more = 1 + self.writer.flushed_row_groups().len() / MORE_AFTER;
        self.columns * MAX_MIN_CHUNK_BYTES.min(MIN_CHUNK_BYTES * more)
    }
}

impl EncodeRows for ParquetRows {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.writer.write(rows)?;
        if self.writer.memory_size() > self.buffer_bytes && self.writer.in_progress_size() > self.min_group_bytes() {
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
