//! Writes the batches of a block to one file, in any format.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use futures::{Stream, TryStreamExt};
use object_store::buffered::BufWriter;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;

use super::formats::{EncodeRows, WriteFormat};
use super::local_file::LocalFile;
use super::staging::Staging;
use crate::block::TaskId;
use crate::error::ErrorContext;
use crate::runtime::{UnderWay, holding_up};

/// Bytes of an upload when there is plenty of memory, and at least.
const UPLOAD_BYTES: usize = 10 << 20;
const MIN_UPLOAD_BYTES: usize = 1 << 20;
/// Uploads of one file at once.
const CONCURRENT_UPLOADS: usize = 2;

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

    /// Name of the format.
    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Whether files can take rows as they come, by [`FileWriter::begin`].
    pub(crate) fn takes_rows_as_they_come(&self, staging: &Staging) -> bool {
        self.0.streams() && !self.0.compression().is_compressed() && staging.file_of(&TaskId::root(0)).is_some()
    }

    /// A new local file that takes rows as they come.
    ///
    /// # Errors
    ///
    /// Where the place is not on a local disk, or cannot be written.
    pub(crate) fn begin(
        &self,
        staging: &Staging,
        id: &TaskId,
        schema: &SchemaRef,
        buffer_bytes: usize,
    ) -> Result<GrowingFile> {
        let path = staging.file_of(id);
        let path = path.ok_or_else(|| internal_datafusion_err!("{} is not on a local disk", staging.path_of(id)))?;
        let create = || {
            let file = LocalFile::create(&path, Arc::clone(staging.pace()), buffer_bytes)?;
            let file = Shared::new(file);
            Ok::<_, DataFusionError>((self.0.encoder(schema, Box::new(file.clone()), buffer_bytes)?, file))
        };
        let (rows, file) = create().while_doing(|| format!("writing '{}'", path.display()))?;
        Ok(GrowingFile { path, file, rows })
    }

    /// Writes all batches to a new file, buffering not much more than `buffer_bytes`. Returns the number of rows.
    pub(crate) async fn write(
        &self,
        staging: &Staging,
        id: &TaskId,
        schema: &SchemaRef,
        buffer_bytes: usize,
        batches: impl Stream<Item = Result<RecordBatch>> + Send,
    ) -> Result<usize> {
        let mut batches = std::pin::pin!(batches);
        if self.takes_rows_as_they_come(staging) {
            let mut file = self.begin(staging, id, schema, buffer_bytes)?;
            while let Some(batch) = batches.try_next().await? {
                file.write(&batch)?;
            }
            return file.close()?.finish();
        }
        let capacity = UPLOAD_BYTES.min(buffer_bytes / 4).max(MIN_UPLOAD_BYTES);
        let (store, path) = (Arc::clone(staging.store()), staging.path_of(id));
        let upload = BufWriter::with_capacity(store, path, capacity).with_max_concurrency(CONCURRENT_UPLOADS);
        let mut upload = self.0.compression().convert_async_writer(upload)?;
        let encoded = Shared::new(Vec::new());
        let mut rows = self.0.encoder(schema, Box::new(encoded.clone()), buffer_bytes)?;
        while let Some(batch) = batches.try_next().await? {
            rows.write(&batch)?;
            let bytes = std::mem::take(&mut *encoded.0.lock());
            UnderWay::during(upload.write_all(&bytes)).await.map_err(DataFusionError::IoError)?;
        }
        let rows = rows.finish()?;
        let bytes = std::mem::take(&mut *encoded.0.lock());
        UnderWay::during(upload.write_all(&bytes)).await.map_err(DataFusionError::IoError)?;
        UnderWay::during(upload.shutdown()).await.map_err(DataFusionError::IoError)?;
        Ok(rows)
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
