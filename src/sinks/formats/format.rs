//! What a format of files is to a write.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Write;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, plan_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

/// A format that datasets can be written in, with its options: one file per block.
///
/// Where the files are, how they are staged and committed, and when a block ends is not the format's to know.
/// Applications register theirs with
/// [`DataContext::register_write_format`](crate::DataContext::register_write_format).
pub trait WriteFormat: Debug + Send + Sync + 'static {
    /// Its name as plans and errors show it, like `CSV`.
    fn name(&self) -> &'static str;

    /// How names of its files end, without a dot. The first is that of new files, and what stands behind `STORED AS`.
    fn extensions(&self) -> &'static [&'static str];

    /// How a file is compressed as a whole. Not at all, if this is left out.
    fn compression(&self) -> FileCompressionType {
        FileCompressionType::UNCOMPRESSED
    }

    /// The format with these options of a write.
    ///
    /// # Errors
    ///
    /// Where it does not have them.
    fn with_options(&self, options: &HashMap<String, String>) -> Result<Option<Arc<dyn WriteFormat>>> {
        match options.keys().min() {
            Some(option) => plan_err!("{} files have no option '{option}'", self.name()),
            None => Ok(None),
        }
    }

    /// Whether local files are written while their rows come. Otherwise the rows of a block are gathered first, and
    /// written once more after an error that may pass.
    fn streams(&self) -> bool {
        false
    }

    /// The format for a file of about `file_rows` rows that begins with these, where that is another one.
    ///
    /// # Errors
    ///
    /// Where the rows cannot be looked at.
    fn for_rows(&self, _rows: &[RecordBatch], _file_rows: usize) -> Result<Option<Arc<dyn WriteFormat>>> {
        Ok(None)
    }

    /// An encoder of rows with these columns, which puts bytes into `file` and buffers not much more than
    /// `buffer_bytes` of them.
    ///
    /// # Errors
    ///
    /// Where the format has no place for such columns.
    fn encoder(
        &self,
        schema: &SchemaRef,
        file: Box<dyn Write + Send>,
        buffer_bytes: usize,
    ) -> Result<Box<dyn EncodeRows>>;
}

/// Writes the rows of one file.
pub trait EncodeRows: Send {
    /// Writes rows behind the ones before.
    ///
    /// # Errors
    ///
    /// Where they cannot be encoded, or the file cannot be written.
    fn write(&mut self, rows: &RecordBatch) -> Result<()>;

    /// Ends the file, also one without rows. Returns the number of rows that its readers will find.
    ///
    /// # Errors
    ///
    /// Where the file cannot be written.
    fn finish(self: Box<Self>) -> Result<usize>;
}
