//! Writes the batches of a block to one file, in any format.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::area::StagingArea;
use super::formats::{EncodeRows, WriteFormat};
use super::local_file::LocalFile;
use super::uploads::upload_bytes;
use crate::block::TaskId;
use crate::error::ErrorContext;
use crate::runtime::{UnderWay, holding_up};

/// Writes files of a format.
#[derive(Debug, Clone)]
pub(crate) struct FileWriter(Arc<dyn WriteFormat>);

impl FileWriter {
    /// A writer of files of `format`.
    pub(crate) fn new(format: Arc<dyn WriteFormat>) -> Self {
        Self(format)
    }

    /// The writer for a file of `file_rows` rows that begins with these.
    pub(crate) fn for_rows(&self, batches: &[RecordBatch], file_rows: usize) -> Result<Self> {
        Ok(self.0.for_rows(batches, file_rows)?.map_or_else(|| self.clone(), Self))
    }

    /// Bytes that are on their way into a file at most, beside `buffer_bytes` that are encoded.
    pub(crate) fn file_bytes(buffer_bytes: usize) -> usize {
        LocalFile::memory_bytes(buffer_bytes)
    }

    /// The same of a file that does not take rows as they come.
    pub(crate) fn block_file_bytes(area: &StagingArea, buffer_bytes: usize) -> usize {
        if area.directory().is_some() { 0 } else { upload_bytes(buffer_bytes) }
    }

    /// Name of the format.
    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Whether files can take rows as they come, by [`FileWriter::begin`].
    pub(crate) fn takes_rows_as_they_come(&self, area: &StagingArea) -> bool {
        self.0.streams() && !self.0.compression().is_compressed() && area.directory().is_some()
    }

    /// A new local file that takes rows as they come.
    ///
    /// # Errors
    ///
    /// Where the place is not on a local disk, or cannot be written.
    pub(crate) fn begin(
        &self,
        area: &StagingArea,
        id: &TaskId,
        schema: &SchemaRef,
        buffer_bytes: usize,
    ) -> Result<GrowingFile> {
        let directory = area.directory();
        let directory =
            directory.ok_or_else(|| internal_datafusion_err!("block {id} is not written to a local disk"))?;
        let path = directory.file_of(id);
        let create = || {
            let file = LocalFile::create(&path, Arc::clone(directory.pace()), buffer_bytes)?;
            let file = Shared::new(file);
            Ok::<_, DataFusionError>((self.0.encoder(schema, Box::new(file.clone()), buffer_bytes)?, file))
        };
        let (rows, file) = create().while_doing(|| format!("writing '{}'", path.display()))?;
        Ok(GrowingFile { path, file, rows })
    }

    /// Writes all batches to a new file in a directory below that of the write, buffering not much more than
    /// `buffer_bytes`. Returns the number of rows.
    pub(crate) async fn write(
        &self,
        area: &StagingArea,
        id: &TaskId,
        directory: &Path,
        schema: &SchemaRef,
        buffer_bytes: usize,
        mut batches: BoxStream<'static, Result<RecordBatch>>,
    ) -> Result<usize> {
        if self.takes_rows_as_they_come(area) {
            let mut file = self.begin(area, id, schema, buffer_bytes)?;
            while let Some(batch) = batches.try_next().await? {
                file.write(&batch)?;
            }
            return file.close()?.finish();
        }
        let mut file: Box<dyn AsyncWrite + Send + Unpin> = match area.directory() {
            Some(staged) => Box::new(tokio::fs::File::create(staged.file_of(id)).await?),
            None => Box::new(area.upload(id, directory, buffer_bytes).await?),
        };
        let rows = Arc::<AtomicUsize>::default();
        let encoded = self.encoded(schema, buffer_bytes, batches, &rows)?;
        let mut pieces = self.0.compression().convert_to_compress_stream(encoded)?;
        while let Some(piece) = pieces.try_next().await? {
            UnderWay::during(file.write_all(&piece)).await.map_err(DataFusionError::IoError)?;
        }
        UnderWay::during(file.shutdown()).await.map_err(DataFusionError::IoError)?;
        Ok(rows.load(Relaxed))
    }

    /// The bytes of a file, and at their end its number of rows in `rows`.
    fn encoded(
        &self,
        schema: &SchemaRef,
        buffer_bytes: usize,
        batches: BoxStream<'static, Result<RecordBatch>>,
        rows: &Arc<AtomicUsize>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let encoded = Shared::new(Vec::new());
        let encoder = self.0.encoder(schema, Box::new(encoded.clone()), buffer_bytes)?;
        let rows = Arc::clone(rows);
        let next =
            move |(encoder, mut batches): (Option<Box<dyn EncodeRows>>, BoxStream<'static, Result<RecordBatch>>)| {
                let (encoded, rows) = (encoded.clone(), Arc::clone(&rows));
                async move {
                    let Some(mut encoder) = encoder else { return Ok(None) };
                    let rest = match batches.try_next().await? {
                        Some(batch) => {
                            encoder.write(&batch)?;
                            Some(encoder)
                        }
                        None => {
                            rows.store(encoder.finish()?, Relaxed);
                            None
                        }
                    };
                    let bytes = std::mem::take(&mut *encoded.0.lock());
                    Ok(Some((Bytes::from(bytes), (rest, batches))))
                }
            };
        Ok(stream::try_unfold((Some(encoder), batches), next).boxed())
    }
}

/// Where an encoder puts its bytes, and somebody else finds them.
#[derive(Debug)]
struct Shared<W>(Arc<Mutex<W>>);

impl<W> Shared<W> {
    fn new(to: W) -> Self {
        Self(Arc::new(Mutex::new(to)))
    }

    /// What it was made of, once the encoder is gone.
    fn into_inner(self) -> Option<W> {
        Arc::into_inner(self.0).map(Mutex::into_inner)
    }
}

impl<W> Clone for Shared<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Write> Write for Shared<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.lock().write_all(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().flush()
    }
}

/// A local file that takes rows as they come. Pages go from the encoders into the file: an upload would copy them three
/// times more.
pub(crate) struct GrowingFile {
    path: PathBuf,
    file: Shared<LocalFile>,
    rows: Box<dyn EncodeRows>,
}

impl GrowingFile {
    /// Encodes rows.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows.write(batch).while_doing(|| format!("writing '{}'", self.path.display()))
    }

    /// Encodes the end of the file.
    pub(crate) fn close(self) -> Result<Written> {
        let Self { path, file, rows } = self;
        let rows = rows.finish().while_doing(|| format!("writing '{}'", path.display()))?;
        let file = file.into_inner();
        let file = file.ok_or_else(|| internal_datafusion_err!("the encoder of '{}' goes on", path.display()))?;
        Ok(Written { path, rows, file })
    }
}

/// A local file that is encoded, and may not be written yet.
#[derive(Debug)]
pub(crate) struct Written {
    path: PathBuf,
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
        let written = holding_up(|| self.file.finish()).map_err(DataFusionError::from);
        written.while_doing(|| format!("writing '{}'", self.path.display()))?;
        Ok(self.rows)
    }
}
