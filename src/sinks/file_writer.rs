//! Writes the batches of a block to one file.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::common::config::{CsvOptions, JsonOptions, TableParquetOptions};
use datafusion::common::file_options::csv_writer::CsvWriterOptions;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::parquet::arrow::{ArrowWriter, AsyncArrowWriter};
use datafusion::parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use futures::{Stream, TryStreamExt};
use object_store::buffered::BufWriter;
use tokio::io::AsyncWriteExt;

use super::local_file::LocalFile;
use super::{Staging, dictionaries};
use crate::block::TaskId;
use crate::error::ErrorContext;
use crate::runtime::{UnderWay, holding_up};

/// Bytes of an upload when there is plenty of memory, and at least.
const UPLOAD_BYTES: usize = 10 << 20;
const LEAST_UPLOAD_BYTES: usize = 1 << 20;
/// Uploads of one file at once.
const CONCURRENT_UPLOADS: usize = 2;

/// A format with its options.
#[derive(Debug, Clone)]
pub(crate) enum FileWriter {
    Parquet(Box<TableParquetOptions>),
    Csv(CsvOptions),
    Json(JsonOptions),
}

impl FileWriter {
    /// The writer for one of DataFusion's formats, if it is one that blocks can be written in.
    pub(crate) fn of(format: &dyn FileFormat) -> Option<Self> {
        let format: &dyn std::any::Any = format;
        if let Some(parquet) = format.downcast_ref::<ParquetFormat>() {
            Some(Self::Parquet(Box::new(parquet.options().clone())))
        } else if let Some(csv) = format.downcast_ref::<CsvFormat>() {
            Some(Self::Csv(csv.options().clone()))
        } else {
            format.downcast_ref::<JsonFormat>().map(|json| Self::Json(json.options().clone()))
        }
    }

    /// The writer for a file of `file_rows` rows that begins with these.
    pub(crate) fn for_rows(&self, batches: &[RecordBatch], file_rows: usize) -> Result<Self> {
        Ok(match self {
            Self::Parquet(options) => Self::Parquet(Box::new(dictionaries::of_rows(options, batches, file_rows)?)),
            other => other.clone(),
        })
    }

    /// Bytes that are on their way into a file at most, beside `buffer_bytes` that are encoded.
    pub(crate) fn file_bytes(buffer_bytes: usize) -> usize {
        LocalFile::memory_bytes(buffer_bytes)
    }

    /// Name of the format.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Parquet(_) => "Parquet",
            Self::Csv(_) => "CSV",
            Self::Json(_) => "JSON",
        }
    }

    /// Whether files can take rows as they come, by [`FileWriter::begin`].
    pub(crate) fn takes_rows_as_they_come(&self, staging: &Staging) -> bool {
        matches!(self, Self::Parquet(_)) && staging.file_of(&TaskId::root(0)).is_some()
    }

    /// A new file that takes rows as they come.
    ///
    /// # Errors
    ///
    /// Where the format or the place are not such that this is possible.
    pub(crate) fn begin(
        &self,
        staging: &Staging,
        id: &TaskId,
        schema: SchemaRef,
        buffer_bytes: usize,
    ) -> Result<LocalParquet> {
        match (self, staging.file_of(id)) {
            (Self::Parquet(options), Some(path)) => LocalParquet::create(options, path, staging, schema, buffer_bytes),
            _ => internal_err!("{} files do not take rows as they come here", self.name()),
        }
    }

    /// Writes all batches to a new file, buffering not much more than `buffer_bytes`. Returns the number of rows.
    pub(crate) async fn write(
        &self,
        staging: &Staging,
        id: &TaskId,
        schema: SchemaRef,
        buffer_bytes: usize,
        batches: impl Stream<Item = Result<RecordBatch>> + Send,
    ) -> Result<usize> {
        let capacity = UPLOAD_BYTES.min(buffer_bytes / 4).max(LEAST_UPLOAD_BYTES);
        let (store, path) = (Arc::clone(staging.store()), staging.path_of(id));
        let file = BufWriter::with_capacity(store, path, capacity).with_max_concurrency(CONCURRENT_UPLOADS);
        match (self, staging.file_of(id)) {
            (Self::Parquet(options), Some(path)) => {
                let mut file = LocalParquet::create(options, path, staging, schema, buffer_bytes)?;
                let mut batches = std::pin::pin!(batches);
                while let Some(batch) = batches.try_next().await? {
                    file.write(&batch)?;
                }
                file.close()?.finish()
            }
            (Self::Parquet(options), None) => write_parquet(options, file, schema, buffer_bytes, batches).await,
            (Self::Csv(options), _) => {
                let options = CsvWriterOptions::try_from(options)?;
                let encode = |batch: &RecordBatch, first: bool| {
                    let header = options.writer_options.header() && first;
                    let mut text = Vec::new();
                    options.writer_options.clone().with_header(header).build(&mut text).write(batch)?;
                    Ok(text)
                };
                write_text(options.compression, file, schema, batches, encode).await
            }
            (Self::Json(options), _) => {
                let encode = |batch: &RecordBatch, _first: bool| {
                    let mut text = Vec::new();
                    let mut writer = LineDelimitedWriter::new(&mut text);
                    writer.write(batch)?;
                    writer.finish()?;
                    Ok(text)
                };
                write_text(options.compression, file, schema, batches, encode).await
            }
        }
    }
}

fn writer_properties(options: &TableParquetOptions, schema: &SchemaRef) -> Result<WriterProperties> {
    let mut options = options.clone();
    options.arrow_schema(schema);
    Ok(WriterPropertiesBuilder::try_from(&options)?.build())
}

/// A local file that is encoded, and may not be written yet.
#[derive(Debug)]
pub(crate) struct Written {
    rows: usize,
    file: LocalFile,
}

impl Written {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Waits until all of it is written. Returns the number of rows.
    pub(crate) fn finish(self) -> Result<usize> {
        let path = self.file.path().to_owned();
        let written = holding_up(|| self.file.finish()).map_err(DataFusionError::from);
        written.while_doing(|| format!("writing '{}'", path.display()))?;
        Ok(self.rows)
    }
}

/// A Parquet file on a local disk. Pages go from the encoders into the file: an upload would copy them three times
/// more.
pub(crate) struct LocalParquet {
    writer: ArrowWriter<LocalFile>,
    buffer_bytes: usize,
}

impl LocalParquet {
    fn create(
        options: &TableParquetOptions,
        path: PathBuf,
        staging: &Staging,
        schema: SchemaRef,
        buffer_bytes: usize,
    ) -> Result<Self> {
        let create = || {
            let properties = writer_properties(options, &schema)?;
            let file = LocalFile::create(&path, Arc::clone(staging.pace()), buffer_bytes)?;
            Ok::<_, DataFusionError>(ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties))?)
        };
        let writer = create().while_doing(|| format!("writing '{}'", path.display()))?;
        Ok(Self { writer, buffer_bytes })
    }

    /// Encodes rows.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut write = || {
            self.writer.write(batch)?;
            if self.writer.memory_size() > self.buffer_bytes {
                // A row group ends by the bytes of its columns, not only by its rows.
                holding_up(|| self.writer.flush())?;
            }
            Ok::<_, DataFusionError>(())
        };
        let written = write();
        written.while_doing(|| format!("writing '{}'", self.writer.inner().path().display()))
    }

    /// Encodes the end of the file.
    pub(crate) fn close(mut self) -> Result<Written> {
        let path = self.writer.inner().path().to_owned();
        let close = || {
            holding_up(|| self.writer.flush())?;
            // What readers will be told.
            let rows: i64 = self.writer.flushed_row_groups().iter().map(|group| group.num_rows()).sum();
            Ok::<_, DataFusionError>(Written { rows: rows as usize, file: holding_up(|| self.writer.into_inner())? })
        };
        close().while_doing(|| format!("writing '{}'", path.display()))
    }
}

async fn write_parquet(
    options: &TableParquetOptions,
    file: BufWriter,
    schema: SchemaRef,
    buffer_bytes: usize,
    batches: impl Stream<Item = Result<RecordBatch>> + Send,
) -> Result<usize> {
    let properties = writer_properties(options, &schema)?;
    let mut writer = AsyncArrowWriter::try_new(file, schema, Some(properties))?;
    let mut batches = std::pin::pin!(batches);
    while let Some(batch) = batches.try_next().await? {
        UnderWay::during(writer.write(&batch)).await?;
        if writer.memory_size() > buffer_bytes {
            // A row group ends by the bytes of its columns, not only by its rows.
            UnderWay::during(writer.flush()).await?;
        }
    }
    // What readers will be told.
    Ok(UnderWay::during(writer.close()).await?.file_metadata().num_rows() as usize)
}

async fn write_text(
    compression: CompressionTypeVariant,
    file: BufWriter,
    schema: SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch>> + Send,
    encode: impl Fn(&RecordBatch, bool) -> Result<Vec<u8>>,
) -> Result<usize> {
    let mut writer = FileCompressionType::from(compression).convert_async_writer(file)?;
    let mut rows = 0;
    let mut first = true;
    let mut batches = std::pin::pin!(batches);
    while let Some(batch) = batches.try_next().await? {
        rows += batch.num_rows();
        let text = encode(&batch, first)?;
        UnderWay::during(writer.write_all(&text)).await.map_err(DataFusionError::IoError)?;
        first = false;
    }
    if first {
        // A block without rows still says which columns there are, where the format can.
        let text = encode(&RecordBatch::new_empty(schema), true)?;
        UnderWay::during(writer.write_all(&text)).await.map_err(DataFusionError::IoError)?;
    }
    UnderWay::during(writer.shutdown()).await.map_err(DataFusionError::IoError)?;
    Ok(rows)
}
