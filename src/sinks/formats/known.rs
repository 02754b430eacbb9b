//! Formats that DataFusion has, too: their options are DataFusion's.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};

use super::format::WriteFormat;

/// A format of DataFusion that is written by ours.
#[derive(Debug, Clone)]
pub(crate) struct KnownFormat {
    /// Makes DataFusion's format with the options of a write.
    pub(crate) factory: Arc<dyn FileFormatFactory>,
    writer_of: fn(&dyn FileFormat) -> Option<Arc<dyn WriteFormat>>,
}

impl KnownFormat {
    /// The format that `factory` makes as a `T`, and ours with the same options.
    pub(super) fn new(
        factory: impl FileFormatFactory + 'static,
        writer_of: fn(&dyn FileFormat) -> Option<Arc<dyn WriteFormat>>,
    ) -> Self {
        Self { factory: Arc::new(factory), writer_of }
    }

    /// Our format with the options of DataFusion's.
    pub(crate) fn writer_of(&self, format: &dyn FileFormat) -> Result<Arc<dyn WriteFormat>> {
        (self.writer_of)(format).ok_or_else(|| internal_datafusion_err!("{format:?} is not what its factory makes"))
    }
}
