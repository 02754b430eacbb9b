//! The formats of COPY and INSERT: those of DataFusion with their writers replaced by ours, and those of applications.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, Statistics, not_impl_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory, FileMeta};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSinkConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::{LexOrdering, LexRequirement};
use datafusion::physical_plan::ExecutionPlan;
use object_store::{ObjectMeta, ObjectStore};

use super::write::{WriteSettings, plan_write};
use crate::sinks::{KnownFormat, WriteFormat, known_formats};

/// DataFusion's formats, with their writers replaced by ours.
pub(crate) fn block_formats() -> Vec<Arc<dyn FileFormatFactory>> {
    known_formats().map(|known| Arc::new(BlockFormatFactory(known)) as _).to_vec()
}

/// A format of an application, which can be written and not read.
pub(crate) fn written_format(format: Arc<dyn WriteFormat>) -> Arc<dyn FileFormatFactory> {
    Arc::new(WrittenFormatFactory(format))
}

#[derive(Debug)]
struct BlockFormatFactory(KnownFormat);

impl GetExt for BlockFormatFactory {
    fn get_ext(&self) -> String {
        self.0.factory.get_ext()
    }
}

impl FileFormatFactory for BlockFormatFactory {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut options = options.clone();
        let settings = WriteSettings::taken_from(&mut options)?;
        Ok(Arc::new(BlockFormat {
            inner: self.0.factory.create(state, &options)?,
            writer: Writer::Known(self.0.clone()),
            settings,
        }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        let (inner, writer) = (self.0.factory.default(), Writer::Known(self.0.clone()));
        Arc::new(BlockFormat { inner, writer, settings: WriteSettings::default() })
    }
}

#[derive(Debug)]
struct WrittenFormatFactory(Arc<dyn WriteFormat>);

impl GetExt for WrittenFormatFactory {
    fn get_ext(&self) -> String {
        extension(self.0.as_ref())
    }
}

impl FileFormatFactory for WrittenFormatFactory {
    fn create(&self, _state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut options = options.clone();
        let settings = WriteSettings::taken_from(&mut options)?;
        let name = |(key, value): (String, String)| (key.trim_start_matches("format.").to_owned(), value);
        let options = options.into_iter().map(name).collect();
        let format = self.0.with_options(&options)?.unwrap_or_else(|| Arc::clone(&self.0));
        let inner = Arc::new(Unread(Arc::clone(&format)));
        Ok(Arc::new(BlockFormat { inner, writer: Writer::Own(format), settings }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        let (inner, writer) = (Arc::new(Unread(Arc::clone(&self.0))), Writer::Own(Arc::clone(&self.0)));
        Arc::new(BlockFormat { inner, writer, settings: WriteSettings::default() })
    }
}

fn extension(format: &dyn WriteFormat) -> String {
    format.extensions().first().copied().unwrap_or_default().to_owned()
}

/// A format that is written by blocks.
#[derive(Debug)]
struct BlockFormat {
    inner: Arc<dyn FileFormat>,
    writer: Writer,
    settings: WriteSettings,
}

#[derive(Debug)]
enum Writer {
    /// With the options of DataFusion's format.
    Known(KnownFormat),
    Own(Arc<dyn WriteFormat>),
}

#[async_trait]
impl FileFormat for BlockFormat {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.inner.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.inner.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.inner.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.inner.infer_stats(state, store, table_schema, object).await
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        self.inner.infer_ordering(state, store, table_schema, object).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        self.inner.infer_stats_and_ordering(state, store, table_schema, object).await
    }

    async fn create_physical_plan(&self, state: &dyn Session, conf: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        self.inner.create_physical_plan(state, conf).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        conf: FileSinkConfig,
        _order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let format = match &self.writer {
            Writer::Known(known) => known.writer_of(self.inner.as_ref())?,
            Writer::Own(format) => Arc::clone(format),
        };
        plan_write(input, format, &self.settings, conf, state.config().target_partitions())
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.inner.file_source(table_schema)
    }
}

/// A format that has no reader.
#[derive(Debug)]
struct Unread(Arc<dyn WriteFormat>);

#[async_trait]
impl FileFormat for Unread {
    fn get_ext(&self) -> String {
        extension(self.0.as_ref())
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        Ok(format!("{}{}", self.get_ext(), compression.get_ext()))
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        Some(self.0.compression())
    }

    async fn infer_schema(
        &self,
        _state: &dyn Session,
        _store: &Arc<dyn ObjectStore>,
        _objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        not_impl_err!("{} files can be written, and not read", self.0.name())
    }

    async fn infer_stats(
        &self,
        _state: &dyn Session,
        _store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        _object: &ObjectMeta,
    ) -> Result<Statistics> {
        Ok(Statistics::new_unknown(&table_schema))
    }

    async fn create_physical_plan(
        &self,
        _state: &dyn Session,
        _conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        not_impl_err!("{} files can be written, and not read", self.0.name())
    }

    /// Nothing is read from it: there is no plan of a scan.
    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        JsonFormat::default().file_source(table_schema)
    }
}
