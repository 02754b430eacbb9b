//! Files of text: their columns and types are a guess by the first rows. Where a later row does not fit, the error
//! names the file, the line, and how to say what the columns are.
//!
//! Wraps the source of DataFusion's scan, which stays as it is but for how files are opened.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use async_compression::tokio::bufread::{BzDecoder, XzDecoder, ZstdDecoder};
use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::DisplayFormatType;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_datasource::boundary_stream::AlignedBoundaryStream;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio_util::io::{ReaderStream, StreamReader};

use super::format::{Files, Finish, Scan};
use crate::config::BlockyardOptions;
use crate::error::ErrorContext;
use crate::physical::{file_scan, shown_root};
use crate::sources::files::{
    Listing, PinnedStore, Unit, detect_parallelism, distinct_names, full_path, plain_unless_asked,
};

/// What to do about a row that does not fit.
pub(super) const ADVICE: &str =
    "the columns and their types come from the first rows; say others with types => 'column type, ..'";

/// Files of at most so many bytes tell their columns by all rows.
const SMALL_FILE_BYTES: u64 = 4 << 20;
/// Rows that tell the columns of others, and the rows that do where those have no value of some column.
const FIRST_ROWS: usize = 1000;
const MAX_ROWS: usize = 1 << 16;
/// The length of lines is taken from this many bytes.
const SAMPLE_BYTES: u64 = 1 << 20;
/// Lines are counted in so many bytes at once.
const COUNTED_BYTES: u64 = 4 << 20;
/// Bytes that a reader of text holds: what it fetched and has not yet decoded.
const TEXT_BUFFER_BYTES: usize = 1 << 20;

/// The columns by the first rows of the file `telling`: by so many that each has a value, as far as that is possible.
/// `infer` finds those of some first rows.
pub(super) async fn columns_by_rows<'a>(
    session: &dyn Session,
    listing: &Listing,
    telling: &ObjectMeta,
    infer: impl Fn(usize) -> BoxFuture<'a, Result<Schema>>,
) -> Result<Vec<FieldRef>> {
    let is_small = telling.size <= SMALL_FILE_BYTES && !listing.compression().is_compressed();
    let steps = if is_small { vec![usize::MAX] } else { vec![FIRST_ROWS, MAX_ROWS] };
    let mut schema = Schema::empty();
    for rows in steps {
        let path = || full_path(&listing.url, &telling.location);
        schema = infer(rows).await.while_doing(|| format!("reading the columns of '{}'", path()))?;
        if !schema.fields().iter().any(|field| has_no_values(field.data_type())) {
            break;
        }
    }
    let schema = plain_unless_asked(session, schema);
    Ok(distinct_names(schema.fields()).iter().map(text_without_values).collect())
}

fn has_no_values(kind: &DataType) -> bool {
    match kind {
        DataType::Null => true,
        DataType::List(item) => has_no_values(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_no_values(field.data_type())),
        _ => false,
    }
}

/// A column of which no value was seen is text.
fn text_without_values(field: &FieldRef) -> FieldRef {
    let kind = match field.data_type() {
        DataType::Null => DataType::Utf8,
        DataType::List(item) => DataType::List(text_without_values(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(text_without_values).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(kind))
}

/// The columns with the types that the user gave. `unknown` makes a column of a name that none of them has.
pub(super) fn with_types(
    fields: Vec<FieldRef>,
    types: &[(String, DataType)],
    unknown: impl Fn(&str, &DataType, &[&str]) -> Result<Field>,
) -> Result<Schema> {
    let mut fields: Vec<Field> = fields.iter().map(|field| field.as_ref().clone()).collect();
    for (name, wanted) in types {
        match fields.iter_mut().find(|field| field.name() == name) {
            Some(field) => field.set_data_type(wanted.clone()),
            None => {
                let known: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
                let field = unknown(name, wanted, &known)?;
                fields.push(field);
            }
        }
    }
    Ok(Schema::new(fields))
}

/// Bytes of a line, by the first lines of the first file that has any; 0 where files are compressed.
pub(super) async fn line_bytes(files: &Files) -> Result<usize> {
    let Some(file) = files.files.iter().find(|f| f.object_meta.size > 0) else {
        return Ok(0);
    };
    if files.compression.is_compressed() {
        return Ok(0);
    }
    let meta = &file.object_meta;
    let head = files.store.get_range(&meta.location, 0..meta.size.min(SAMPLE_BYTES)).await?;
    Ok(head.len() / head.iter().filter(|byte| **byte == b'\n').count().max(1))
}

/// Byte ranges of files, or whole files where a line cannot be told from the middle of one.
pub(super) fn byte_ranges(
    session: &dyn Session,
    files: &Files,
    scan: &Scan<'_>,
    is_splittable: bool,
    override_num_blocks: Option<usize>,
) -> Vec<Unit> {
    let options = BlockyardOptions::from_config(session.config_options());
    let total: u64 = files.files.iter().map(|f| f.object_meta.size).sum();
    let tasks = override_num_blocks.unwrap_or_else(|| detect_parallelism(total as usize, &options));
    let smallest = if override_num_blocks.is_some() { 1 } else { options.target_min_block_size.0.max(1) as u64 };
    let piece = total.div_ceil(tasks as u64).max(smallest);
    // Lines are not counted before they are read.
    let is_splittable = is_splittable && !files.compression.is_compressed() && !scan.numbers_rows;
    let mut units = Vec::new();
    for (file, meta) in files.files.iter().map(|f| &f.object_meta).enumerate() {
        let pieces = if is_splittable { meta.size.div_ceil(piece).max(1) } else { 1 };
        let cut = |k: u64| k * meta.size / pieces;
        let unit = |k| Unit {
            file,
            range: (cut(k), cut(k + 1)),
            first_row: (k == 0).then_some(0),
            bytes: (cut(k + 1) - cut(k)) as usize,
            held_bytes: TEXT_BUFFER_BYTES,
            pieces: None,
        };
        units.extend((0..pieces).map(unit));
    }
    units
}

/// Opens files as streams of what is in them: `contents` makes the one of a format, which is told the columns that are
/// wanted of it.
pub(super) fn projected<O: FileOpener + 'static>(
    opening: Opening<'_>,
    contents: impl FnOnce(Contents) -> O,
) -> Result<Arc<dyn FileOpener>> {
    let Opening { source, store, config, partition, batch_size, root } = opening;
    let Some((projection, batch_size)) = source.projection().zip(batch_size) else {
        return source.create_file_opener(store, config, partition);
    };
    let file_schema = source.table_schema().file_schema();
    let split = SplitProjection::new(file_schema, projection);
    let contents = contents(Contents {
        store,
        root,
        file_schema: Arc::clone(file_schema),
        schema: Arc::new(file_schema.project(&split.file_indices)?),
        columns: split.file_indices.clone(),
        partition,
        metrics: source.metrics().clone(),
        batch_size,
        compression: config.file_compression_type,
    });
    ProjectionOpener::try_new(split, Arc::new(contents), file_schema)
}

/// What the contents of files are read with.
#[derive(Debug, Clone)]
pub(super) struct Contents {
    pub(super) store: Arc<dyn ObjectStore>,
    /// What comes before a location when it is shown.
    pub(super) root: String,
    /// All columns of the files, those of them that are wanted, and the numbers of these.
    pub(super) file_schema: SchemaRef,
    pub(super) schema: SchemaRef,
    pub(super) columns: Vec<usize>,
    /// Number of the task, and where it counts.
    pub(super) partition: usize,
    pub(super) metrics: ExecutionPlanMetricsSet,
    pub(super) batch_size: usize,
    pub(super) compression: FileCompressionType,
}

impl Contents {
    /// The contents of a file with other columns, of which those are wanted that it has.
    pub(super) fn with_columns(self, file_schema: SchemaRef) -> Result<Self> {
        let place = |field: &FieldRef| file_schema.index_of(field.name()).ok();
        let columns: Vec<usize> = self.schema.fields().iter().filter_map(place).collect();
        let schema = Arc::new(file_schema.project(&columns)?);
        Ok(Self { file_schema, schema, columns, ..self })
    }

    /// Whether all columns are wanted.
    pub(super) fn has_all_columns(&self) -> bool {
        self.columns.len() == self.file_schema.fields().len()
    }
}

/// What compressed bytes stand for. They may be those of several files, one after the other: as when one was appended
/// to another, or several threads have compressed.
pub(super) fn decompressed(
    compression: FileCompressionType,
    bytes: BoxStream<'static, Result<Bytes>>,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    macro_rules! all_members {
        ($decoder:ident) => {{
            let mut decoder = $decoder::new(StreamReader::new(bytes));
            decoder.multiple_members(true);
            Ok(ReaderStream::new(decoder).map_err(DataFusionError::from).boxed())
        }};
    }
    match compression {
        FileCompressionType::BZIP2 => all_members!(BzDecoder),
        FileCompressionType::XZ => all_members!(XzDecoder),
        FileCompressionType::ZSTD => all_members!(ZstdDecoder),
        compression => compression.convert_stream(bytes),
    }
}

/// The bytes of a file, or of the lines that begin in its range.
pub(super) async fn bytes_of(contents: &Contents, file: &PartitionedFile) -> Result<BoxStream<'static, Result<Bytes>>> {
    rows_bytes_of(contents, file, b'\n').await
}

/// The bytes of a file, or of the rows that begin in its range, each of which ends with `end_of_row`.
pub(super) async fn rows_bytes_of(
    contents: &Contents,
    file: &PartitionedFile,
    end_of_row: u8,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let (path, size) = (&file.object_meta.location, file.object_meta.size);
    if contents.compression.is_compressed() {
        let bytes = contents.store.get(path).await?.into_stream().map_err(DataFusionError::from);
        return decompressed(contents.compression, bytes.boxed());
    }
    let (start, end) = file.range.as_ref().map_or((0, size), |r| (r.start.max(0) as u64, r.end.max(0) as u64));
    let store = Arc::clone(&contents.store);
    let bytes = AlignedBoundaryStream::new(store, path.clone(), start, end, size, end_of_row).await?;
    Ok(bytes.map_err(DataFusionError::from).boxed())
}

/// Lines and bytes in front of the first line that begins at `start` or behind it, by what is known of a line `from`
/// before it.
pub(super) async fn lines_before(
    store: &dyn ObjectStore,
    file: &PartitionedFile,
    from: (usize, u64),
    start: u64,
) -> Result<(usize, u64)> {
    let (mut lines, mut place) = from;
    if place >= start || file.object_meta.size == 0 {
        return Ok(from);
    }
    // The line that `start` is in belongs to the part before.
    while place < file.object_meta.size {
        let end = file.object_meta.size.min(place + COUNTED_BYTES);
        let chunk = store.get_range(&file.object_meta.location, place..end).await?;
        for at in memchr::memchr_iter(b'\n', &chunk) {
            lines += 1;
            let next = place + at as u64 + 1;
            if next >= start {
                return Ok((lines, next));
            }
        }
        place = end;
    }
    Ok((lines + 1, place))
}

/// What a format opens files with.
pub(super) struct Opening<'a> {
    /// DataFusion's source.
    pub(super) source: &'a dyn FileSource,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) config: &'a FileScanConfig,
    pub(super) partition: usize,
    pub(super) batch_size: Option<usize>,
    /// What comes before a location when it is shown.
    pub(super) root: String,
}

/// How a format opens files.
type Open = Arc<dyn Fn(Opening<'_>) -> Result<Arc<dyn FileOpener>> + Send + Sync>;

/// A scan with files that are opened in another way, and that plans call `kind`.
pub(super) fn opened_by<F>(kind: &'static str, open: F) -> Finish
where
    F: Fn(Opening<'_>) -> Result<Arc<dyn FileOpener>> + Send + Sync + 'static,
{
    Box::new(move |scan, pinned| {
        let Some(config) = file_scan(&scan) else {
            return scan;
        };
        let (inner, open) = (Arc::clone(&config.file_source), Arc::new(open));
        let source = TextSource { inner, kind, open, pinned, batch_size: None };
        let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
        DataSourceExec::from_data_source(config)
    })
}

#[derive(Clone)]
struct TextSource {
    inner: Arc<dyn FileSource>,
    kind: &'static str,
    open: Open,
    /// Where files are read, if that is not the store of the session.
    pinned: Option<Arc<PinnedStore>>,
    batch_size: Option<usize>,
}

impl FileSource for TextSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let store = match &self.pinned {
            Some(pinned) => Arc::clone(pinned) as _,
            None => store,
        };
        let opening = Opening {
            source: self.inner.as_ref(),
            root: shown_root(&config.object_store_url),
            batch_size: self.batch_size,
            store,
            config,
            partition,
        };
        let (schema, pinned) = (config.projected_schema()?, self.pinned.clone());
        Ok(Arc::new(SameColumns { inner: (self.open)(opening)?, schema, pinned }))
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
        self.kind
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
    pinned: Option<Arc<PinnedStore>>,
}

impl FileOpener for SameColumns {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let reading = self.pinned.as_ref().map(|pinned| pinned.reading(&file.object_meta.location));
        let (opened, schema) = (self.inner.open(file)?, Arc::clone(&self.schema));
        Ok(Box::pin(async move {
            let rows = opened.await?;
            let same = move |batch: Result<RecordBatch>| {
                let _until_all_is_read = &reading;
                Ok(batch?.with_schema(Arc::clone(&schema))?)
            };
            Ok(rows.map(same).boxed())
        }))
    }
}
