//! The trait for sinks of your own: where blocks go that are no files of ours.

use std::fmt::Debug;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A place that takes rows: a service, a database, files of another kind.
///
/// Datasets are written to it with [`Dataset::write_datasink`](crate::Dataset::write_datasink), and `INSERT INTO` by
/// the name of [`DataContext::register_sink`](crate::DataContext::register_sink).
#[async_trait]
pub trait Datasink: Debug + Send + Sync + 'static {
    /// What one write does.
    type Job: WriteJob;

    /// What plans show, like `WriteOrders`.
    fn name(&self) -> &str;

    /// Begins a write of rows with these columns; `None` where what is there is to stay, and nothing is written.
    ///
    /// # Errors
    ///
    /// Where the rows cannot be taken.
    async fn begin(&self, schema: SchemaRef) -> Result<Option<Self::Job>>;
}

/// One write to a [`Datasink`]: blocks in parallel, and then all at once `commit` or `abort`.
#[async_trait]
pub trait WriteJob: Send + Sync + 'static {
    /// What is known of a block that was written. It may travel to another process.
    type Written: Serialize + DeserializeOwned + Send + 'static;

    /// Writes the rows of a block. Nobody should see them before the commit. Several blocks are written at once. After
    /// an error that may pass (as a connection that was reset) the same `block` is written again: what the first try
    /// has left does not count, and its result does not come to `commit`.
    ///
    /// # Errors
    ///
    /// Where the rows cannot be written.
    async fn write(&self, block: &str, rows: SendableRecordBatchStream) -> Result<Self::Written>;

    /// Makes all blocks visible. They come in the order of the rows.
    ///
    /// # Errors
    ///
    /// Where that fails; then nothing should be visible. `abort` follows.
    async fn commit(&self, written: Vec<Self::Written>) -> Result<()>;

    /// The write has failed or was cancelled: removes what it left.
    ///
    /// # Errors
    ///
    /// Where something stays. The user is told of it beside the first error.
    async fn abort(&self, error: &DataFusionError) -> Result<()>;
}

/// A [`Datasink`] without types.
#[async_trait]
pub(crate) trait AnyDatasink: Debug + Send + Sync {
    fn name(&self) -> &str;
    async fn begin(&self, schema: SchemaRef) -> Result<Option<Box<dyn AnyWriteJob>>>;
}

/// A [`WriteJob`] without types: what is known of a block is its JSON.
#[async_trait]
pub(crate) trait AnyWriteJob: Send + Sync {
    async fn write(&self, block: &str, rows: SendableRecordBatchStream) -> Result<String>;
    async fn commit(&self, written: Vec<String>) -> Result<()>;
    async fn abort(&self, error: &DataFusionError) -> Result<()>;
}

#[async_trait]
impl<T: Datasink> AnyDatasink for T {
    fn name(&self) -> &str {
        Datasink::name(self)
    }

    async fn begin(&self, schema: SchemaRef) -> Result<Option<Box<dyn AnyWriteJob>>> {
        let job = Datasink::begin(self, schema).await?;
        Ok(job.map(|job| Box::new(job) as Box<dyn AnyWriteJob>))
    }
}

#[async_trait]
impl<T: WriteJob> AnyWriteJob for T {
    async fn write(&self, block: &str, rows: SendableRecordBatchStream) -> Result<String> {
        let written = WriteJob::write(self, block, rows).await?;
        serde_json::to_string(&written).map_err(|e| exec_datafusion_err!("what was written of block {block}: {e}"))
    }

    async fn commit(&self, written: Vec<String>) -> Result<()> {
        let read = |text: String| serde_json::from_str(&text);
        let written: Result<Vec<_>, _> = written.into_iter().map(read).collect();
        WriteJob::commit(self, written.map_err(|e| exec_datafusion_err!("what was written of a block: {e}"))?).await
    }

    async fn abort(&self, error: &DataFusionError) -> Result<()> {
        WriteJob::abort(self, error).await
    }
}
