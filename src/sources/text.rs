//! Files of text: their columns and types are a guess by the first rows. Where a later row does not fit, the error
//! names the file, the line, and how to say what the columns are.
//!
//! Wraps the source of DataFusion's scan, which stays as it is but for the errors of CSV and the reader of JSON.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectStore};

use super::json_lines::{ADVICE, JsonLines};
use crate::error::one_message;
use crate::physical::file_scan;

/// How a file of text has its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Lines of values.
    Csv,
    /// Lines of JSON objects.
    JsonLines,
    /// One array of JSON objects.
    JsonArray,
}

/// The scan with errors that tell where a row is that does not fit the columns.
pub(super) fn with_places(scan: Arc<dyn ExecutionPlan>, shape: Shape) -> Arc<dyn ExecutionPlan> {
    let Some(config) = file_scan(&scan) else {
        return scan;
    };
    let source = TextSource { inner: Arc::clone(&config.file_source), shape, batch_size: None };
    let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
    DataSourceExec::from_data_source(config)
}

#[derive(Clone)]
struct TextSource {
    inner: Arc<dyn FileSource>,
    shape: Shape,
    batch_size: Option<usize>,
}

impl FileSource for TextSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let root = config.object_store_url.as_str().replace("file://", "");
        let projection = self.inner.projection().filter(|_| self.shape != Shape::Csv);
        let schema = config.projected_schema()?;
        let Some((projection, batch_size)) = projection.zip(self.batch_size) else {
            let inner = self.inner.create_file_opener(Arc::clone(&store), config, partition)?;
            let columns = Arc::clone(self.table_schema().file_schema());
            let inner = Arc::new(CsvPlaces { inner, store, root, columns });
            return Ok(Arc::new(SameColumns { inner, schema }));
        };
        let file_schema = self.table_schema().file_schema();
        let split = SplitProjection::new(file_schema, projection);
        let lines = JsonLines {
            store,
            root,
            schema: Arc::new(file_schema.project(&split.file_indices)?),
            // Who reads all columns would miss a key that is none of them.
            is_strict: split.file_indices.len() == file_schema.fields().len(),
            batch_size,
            is_array: self.shape == Shape::JsonArray,
            compression: config.file_compression_type,
        };
        let inner = ProjectionOpener::try_new(split, Arc::new(lines), file_schema)?;
        Ok(Arc::new(SameColumns { inner, schema }))
    }

    fn table_schema(&self) -> &TableSchema {
        self.inner.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        let inner = self.inner.with_batch_size(batch_size);
        Arc::new(Self { inner, batch_size: Some(batch_size), ..self.clone() })
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.inner.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.inner.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.inner.metrics()
    }

    fn file_type(&self) -> &str {
        self.inner.file_type()
    }

    fn fmt_extra(&self, t: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.inner.fmt_extra(t, f)
    }

    fn supports_repartitioning(&self) -> bool {
        self.inner.supports_repartitioning()
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let inner = self.inner.try_pushdown_projection(projection)?;
        Ok(inner.map(|inner| Arc::new(Self { inner, ..self.clone() }) as Arc<dyn FileSource>))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }
}

/// Opens files with the columns of the scan: a column that paths give would be without nulls in a file whose path has a
/// value.
struct SameColumns {
    inner: Arc<dyn FileOpener>,
    schema: SchemaRef,
}

impl FileOpener for SameColumns {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let (opened, schema) = (self.inner.open(file)?, Arc::clone(&self.schema));
        Ok(Box::pin(async move {
            let rows = opened.await?;
            Ok(rows.map(move |batch| Ok(batch?.with_schema(Arc::clone(&schema))?)).boxed())
        }))
    }
}

/// Opens CSV files. The errors of the decoder count lines from where it began to read.
struct CsvPlaces {
    inner: Arc<dyn FileOpener>,
    store: Arc<dyn ObjectStore>,
    root: String,
    columns: SchemaRef,
}

impl FileOpener for CsvPlaces {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let opened = self.inner.open(file.clone())?;
        let (store, root, columns) = (Arc::clone(&self.store), self.root.clone(), Arc::clone(&self.columns));
        Ok(Box::pin(async move {
            let rows = opened.await?;
            let placed = rows.or_else(move |e| {
                let (store, root, file, columns) =
                    (Arc::clone(&store), root.clone(), file.clone(), Arc::clone(&columns));
                async move { Err::<RecordBatch, _>(place_in_csv(e, store.as_ref(), &root, &file, &columns).await) }
            });
            Ok(placed.boxed())
        }))
    }
}

async fn place_in_csv(
    error: DataFusionError,
    store: &dyn ObjectStore,
    root: &str,
    file: &PartitionedFile,
    columns: &Schema,
) -> DataFusionError {
    if !matches!(error.find_root(), DataFusionError::ArrowError(..)) {
        return error;
    }
    let path = &file.object_meta.location;
    let start = file.range.as_ref().map_or(0, |range| range.start.max(0) as u64);
    // An error on the way to the line number is no better than the one that is to be told.
    let before = lines_before(store, file, start).await.unwrap_or(0);
    let message = one_message(&error);
    let (message, place) = match without_line(&message) {
        // The decoder counts lines from 0 on.
        Some((message, line)) => (message, format!("line {} of '{root}{path}'", before + line + 1)),
        None if before > 0 => (message, format!("the part of '{root}{path}' behind line {before}")),
        None => (message, format!("'{root}{path}'")),
    };
    let message = with_name(&message, columns).unwrap_or(message);
    exec_datafusion_err!("{message}\n  while reading {place}; {ADVICE}")
}

/// A message of the decoder without the number of the line in it, and the number.
fn without_line(message: &str) -> Option<(String, usize)> {
    let (before, rest) = message.split_once(" at line ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((format!("{before}{}", &rest[digits..]), rest[..digits].parse().ok()?))
}

/// A message of the decoder with the name of a column in place of its number.
fn with_name(message: &str, columns: &Schema) -> Option<String> {
    let (before, rest) = message.split_once(" for column ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let field = columns.fields().get(rest[..digits].parse::<usize>().ok()?)?;
    Some(format!("{before} for column '{}'{}", field.name(), &rest[digits..]))
}

/// Lines that end in front of the first one that begins at `start` or behind it.
async fn lines_before(store: &dyn ObjectStore, file: &PartitionedFile, start: u64) -> Result<usize> {
    if start == 0 {
        return Ok(0);
    }
    let range = Some(GetRange::Bounded(0..start));
    let options = GetOptions { range, ..GetOptions::default() };
    let text = store.get_opts(&file.object_meta.location, options).await?.into_stream();
    // The line that `start` is in belongs to the part before.
    let last = |last: Option<u8>, chunk: &[u8]| chunk.last().copied().or(last);
    let count = |(lines, byte): (usize, Option<u8>), chunk: bytes::Bytes| {
        let ends = chunk.iter().filter(|byte| **byte == b'\n').count();
        std::future::ready(Ok((lines + ends, last(byte, &chunk))))
    };
    let (ends, byte) = text.map_err(DataFusionError::from).try_fold((0, None), count).await?;
    Ok(ends + usize::from(byte != Some(b'\n')))
}
