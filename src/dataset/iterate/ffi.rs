//! [`Batches`] for other languages: the Arrow C stream interface.

use std::sync::Arc;

use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ffi_stream::FFI_ArrowArrayStream;
use datafusion::arrow::record_batch::RecordBatchIterator;
use datafusion::common::DataFusionError;

use super::Batches;

impl Batches {
    /// The batches as an [Arrow C stream](https://arrow.apache.org/docs/format/CStreamInterface.html), which holds up
    /// the thread of its reader while that waits, as [`Batches::blocking`] does. It works as long as the runtime lives
    /// in which the batches were begun. Releasing it stops the work behind it. Fields keep their metadata, so tensors
    /// come as tensors.
    ///
    /// An error ends the stream: with `ENOMEM` where memory has not sufficed, `EIO` where files failed, `ENOSYS` for
    /// what is not there, else `EINVAL`, each with its text.
    pub fn into_ffi_stream(self) -> FFI_ArrowArrayStream {
        let schema = Arc::clone(self.schema());
        let batches = self.blocking().map(|batch| batch.map_err(error_of_stream));
        FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new(batches, schema)))
    }
}

/// An error as a code and a text in which no byte is 0, where texts of C end.
fn error_of_stream(error: DataFusionError) -> ArrowError {
    let text = error.strip_backtrace().replace('\0', " ");
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => ArrowError::MemoryError(text),
        DataFusionError::IoError(e) => ArrowError::IoError(text, e.kind().into()),
        DataFusionError::NotImplemented(_) => ArrowError::NotYetImplemented(text),
        _ => ArrowError::ExternalError(text.into()),
    }
}
