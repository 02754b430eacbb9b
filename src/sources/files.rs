//! Ray's `read_parquet`, `read_csv`, `read_json`: files as a table with read tasks.
//!
//! The columns come from the first file and stay those of the table. Which files there are, how large, and what their
//! footers say is found out anew for each scan: a table may be a view that lives for long.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::FileScanConfigBuilder;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::columns::{check_same_columns, check_types, columns_of_files, distinct_names, nullable};
use super::file_tasks::{Packed, Unit, detect_parallelism, pack};
use super::formats::{FileKind, ReadOptions};
use super::hive::{partition_columns, with_values};
use super::listing::{ListedFile, Listing, full_path, list_files};
use super::parquet::{self, ParquetUnits};
use super::parquet_pieces::with_page_offsets;
use super::text::{Shape, with_places};
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::error::{ErrorContext, unknown_name};
use crate::physical::{Operator, ReadExec, ReadMemory};

/// Footers that are read at once.
const CONCURRENT_FOOTERS: usize = 32;

/// The names of the columns of a CSV file are in this many bytes.
const HEADER_BYTES: u64 = 64 << 10;

/// The length of lines is taken from this many bytes.
const SAMPLE_BYTES: u64 = 1 << 20;

/// Bytes that a reader of text holds: what it fetched and has not yet decoded.
const TEXT_BUFFER_BYTES: usize = 1 << 20;

/// A task holds at most about this part of a thread's share of the memory in encoded pages.
const HELD_PART: usize = 8;

/// Files as a table.
pub(crate) struct FileTable {
    kind: FileKind,
    paths: Vec<String>,
    options: ReadOptions,
    table_schema: TableSchema,
    columns: Option<Vec<usize>>,
    schema: SchemaRef,
    /// The file that told the columns, as it was.
    telling: ObjectMeta,
}

/// The files of a table as they are at one moment.
struct Files {
    url: ListingTableUrl,
    store: Arc<dyn ObjectStore>,
    format: Arc<dyn FileFormat>,
    files: Vec<PartitionedFile>,
    /// Whether a file may be cut into several tasks.
    splittable: bool,
    compressed: bool,
    /// Whether they have arrays of JSON objects.
    is_array: bool,
}

impl fmt::Debug for FileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.kind.read_name(), self.paths.join(", "))
    }
}

impl FileTable {
    /// Lists the files and opens the first one.
    pub(crate) async fn open(
        session: &dyn Session,
        kind: FileKind,
        paths: &[String],
        options: &ReadOptions,
    ) -> Result<Self> {
        options.override_num_blocks.map_or(Ok(()), |n| check_num_blocks("override_num_blocks", n))?;
        options.delimiter()?;
        let listing = list_files(session.runtime_env(), paths, kind.extensions()).await?;
        let telling = telling(kind, &listing).meta.clone();
        let file_schema = columns_of_files(session, kind, options, &listing, &telling).await?;
        // Another file may lack a column, or have nulls where the first has none.
        let file_schema = if listing.may_grow { nullable(&file_schema) } else { file_schema };
        let hive = partition_columns(&listing, options.include_paths)?;
        for field in &hive {
            if file_schema.field_with_name(field.name()).is_ok() {
                return plan_err!("column '{}' is both in the files and in their paths", field.name());
            }
        }
        let table_schema = TableSchema::builder(Arc::new(file_schema)).with_table_partition_cols(hive).build();
        let full = Arc::clone(table_schema.table_schema());
        let columns = options.columns.as_ref().map(|names| resolve_columns(&full, names, kind)).transpose()?;
        // The path was asked for, too.
        let columns = columns.map(|mut columns| {
            let path = full.fields().len().saturating_sub(1);
            if options.include_paths && !columns.contains(&path) {
                columns.push(path);
            }
            columns
        });
        let schema = match &columns {
            Some(columns) => Arc::new(full.project(columns)?),
            None => full,
        };
        let (paths, options) = (paths.to_vec(), options.clone());
        Ok(Self { kind, paths, options, table_schema, columns, schema, telling })
    }

    /// The paths, and how they are read, where that is as a format.
    pub(super) fn read_as(&self, kind: FileKind) -> Option<(Vec<String>, ReadOptions)> {
        (self.kind == kind).then(|| (self.paths.clone(), self.options.clone()))
    }

    /// Paths of the files that are there now.
    pub(crate) fn input_files(
        &self,
        runtime: Arc<RuntimeEnv>,
    ) -> impl Future<Output = Result<Vec<String>>> + Send + 'static {
        let (paths, kind) = (self.paths.clone(), self.kind);
        async move {
            let listing = list_files(&runtime, &paths, kind.extensions()).await?;
            Ok(listing.files.iter().map(|f| full_path(&listing.url, &f.meta.location)).collect())
        }
    }

    /// Rows by the footers, where the format has footers.
    pub(crate) async fn count_by_metadata(&self, session: &dyn Session) -> Result<Option<usize>> {
        match self.kind {
            FileKind::Parquet => {
                let files = self.files_now(session).await?;
                let found = self.parquet_units(session, &files, &[], None).await?;
                Ok((!found.is_partial).then_some(found.rows))
            }
            FileKind::Csv | FileKind::Json => Ok(None),
        }
    }

    /// The files as they are now. Fails where they no longer have the columns of the table.
    async fn files_now(&self, session: &dyn Session) -> Result<Files> {
        let listing = list_files(session.runtime_env(), &self.paths, self.kind.extensions()).await?;
        let first = &telling(self.kind, &listing).meta;
        if *first != self.telling {
            let found = columns_of_files(session, self.kind, &self.options, &listing, first).await?;
            let told = self.table_schema.file_schema();
            check_same_columns(told, &found, self.kind)
                .while_doing(|| format!("reading '{}' again", full_path(&listing.url, &first.location)))?;
        }
        let files = with_values(&listing, self.table_schema.table_partition_cols(), self.options.include_paths)?;
        let (compression, is_array) = (listing.compression(), listing.is_array(self.kind).await?);
        Ok(Files {
            splittable: self.kind == FileKind::Parquet
                || !compression.is_compressed() && !self.options.newlines_in_values && !is_array,
            compressed: compression.is_compressed(),
            is_array,
            format: self.kind.format(session, &self.options, compression, is_array, None),
            files,
            url: listing.url,
            store: listing.store,
        })
    }

    /// Row groups of the files, for a scan of these columns: of all files, or of as many as have `rows` rows.
    async fn parquet_units(
        &self,
        session: &dyn Session,
        files: &Files,
        columns: &[&str],
        rows: Option<usize>,
    ) -> Result<ParquetUnits> {
        let cache = session.runtime_env().cache_manager.get_file_metadata_cache();
        let options = BlockyardOptions::from_config(session.config_options());
        let may_fail = options.max_errored_blocks.allows_any();
        let most_bytes = options.memory_limit.bytes() / (HELD_PART * session.config().target_partitions());
        let footer_of = |(file, part): (usize, PartitionedFile)| {
            let (store, cache) = (Arc::clone(&files.store), Arc::clone(&cache));
            let (schema, url) = (Arc::clone(self.table_schema.file_schema()), files.url.clone());
            async move {
                let meta = &part.object_meta;
                let footer = parquet::footer(cache, store.as_ref(), meta)
                    .await
                    .while_doing(|| format!("reading the footer of '{}'", full_path(&url, &meta.location)));
                let footer = match footer {
                    Ok(footer) => footer,
                    // Its task finds out, and is one of those that may fail.
                    Err(_) if may_fail => return Ok(ParquetUnits::unknown(file, meta.size)),
                    Err(e) => return Err(e),
                };
                check_types(&schema, &footer)
                    .while_doing(|| format!("reading '{}'", full_path(&url, &meta.location)))?;
                Ok(parquet::units(file, meta.size, &footer, columns, most_bytes)) as Result<_>
            }
        };
        let mut parts = files.files.iter().cloned().enumerate();
        let mut found = ParquetUnits::default();
        // A few rows are in the first file, or soon after it.
        let mut at_once = if rows.is_some() { 1 } else { CONCURRENT_FOOTERS };
        while found.units.is_empty() || rows.is_none_or(|rows| found.rows < rows) {
            let next = match rows {
                Some(_) => parts.by_ref().take(at_once).collect::<Vec<_>>(),
                None => parts.by_ref().collect(),
            };
            if next.is_empty() {
                break;
            }
            let footers = stream::iter(next).map(footer_of).buffered(at_once);
            found = footers.try_fold(found, |all, next| async { Ok(all.and(next)) }).await?;
            at_once = (2 * at_once).min(CONCURRENT_FOOTERS);
        }
        Ok(found)
    }

    /// Values of CSV files are told apart by their place, so all files must have the columns in the same order.
    async fn check_headers(&self, files: &Files) -> Result<()> {
        let named = self.kind == FileKind::Csv && self.options.has_header.unwrap_or(true);
        if !named || files.compressed || files.files.len() < 2 {
            return Ok(());
        }
        // An empty file has no header, and no rows.
        let with_rows: Vec<_> = files.files.iter().filter(|file| file.object_meta.size > 0).cloned().collect();
        let headers = stream::iter(with_rows).map(|file| async move {
            let meta = &file.object_meta;
            let head = files.store.get_range(&meta.location, 0..meta.size.min(HEADER_BYTES)).await?;
            let delimiter = self.options.delimiter()?.unwrap_or(b',');
            let format = Format::default().with_header(true).with_delimiter(delimiter);
            let (schema, _) = format.infer_schema(head.as_ref(), Some(0))?;
            let names: Vec<String> = distinct_names(schema.fields()).iter().map(|f| f.name().clone()).collect();
            let expected: Vec<&String> = self.table_schema.file_schema().fields().iter().map(|f| f.name()).collect();
            if !names.iter().eq(expected.iter().copied()) {
                return plan_err!(
                    "the columns of '{}' are {names:?}, but those of the first file are {expected:?}",
                    full_path(&files.url, &meta.location)
                );
            }
            Ok(())
        });
        headers.buffered(CONCURRENT_FOOTERS).try_collect().await
    }

    /// Bytes of a line, by the first lines of the first file that has any.
    async fn line_bytes(&self, files: &Files) -> Result<usize> {
        let Some(file) = files.files.iter().find(|f| f.object_meta.size > 0).filter(|_| !files.compressed) else {
            return Ok(0);
        };
        let meta = &file.object_meta;
        let head = files.store.get_range(&meta.location, 0..meta.size.min(SAMPLE_BYTES)).await?;
        Ok(head.len() / head.iter().filter(|byte| **byte == b'\n').count().max(1))
    }

    /// Byte ranges of text files.
    fn text_units(&self, files: &Files, options: &BlockyardOptions) -> Vec<Unit> {
        let total: u64 = files.files.iter().map(|f| f.object_meta.size).sum();
        let tasks = self.options.override_num_blocks.unwrap_or_else(|| detect_parallelism(total as usize, options));
        let smallest =
            if self.options.override_num_blocks.is_some() { 1 } else { options.target_min_block_size.0.max(1) as u64 };
        let piece = total.div_ceil(tasks as u64).max(smallest);
        let mut units = Vec::new();
        for (file, meta) in files.files.iter().map(|f| &f.object_meta).enumerate() {
            let pieces = if files.splittable { meta.size.div_ceil(piece).max(1) } else { 1 };
            let cut = |k: u64| k * meta.size / pieces;
            let unit = |k| Unit {
                file,
                range: (cut(k), cut(k + 1)),
                // Lines are not counted before they are read.
                first_row: (k == 0).then_some(0),
                bytes: (cut(k + 1) - cut(k)) as usize,
                held_bytes: TEXT_BUFFER_BYTES,
                pieces: None,
            };
            units.extend((0..pieces).map(unit));
        }
        units
    }
}

/// The file that tells the columns. One without bytes has none to tell, except that every Parquet file must have some.
fn telling(kind: FileKind, listing: &Listing) -> &ListedFile {
    let telling = listing.files.iter().find(|file| file.meta.size > 0 || kind == FileKind::Parquet);
    telling.unwrap_or(&listing.files[0])
}

fn resolve_columns(schema: &Schema, names: &[String], kind: FileKind) -> Result<Vec<usize>> {
    let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    let find = |name: &String| {
        let index = known.iter().position(|k| k == name);
        index.ok_or_else(|| unknown_name("column", name, kind.read_name(), &known))
    };
    names.iter().map(find).collect()
}

#[async_trait]
impl TableProvider for FileTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(session.config_options());
        let files = self.files_now(session).await?;
        let mut statistics = Statistics::new_unknown(self.table_schema.table_schema());
        let columns: Option<Vec<usize>> = match (&self.columns, projection) {
            (Some(columns), Some(projection)) => Some(projection.iter().map(|i| columns[*i]).collect()),
            (columns, projection) => columns.as_ref().or(projection).cloned(),
        };
        let mut memory = ReadMemory::default();
        let units = match self.kind {
            FileKind::Parquet => {
                let full = self.table_schema.table_schema();
                let read = columns.clone().unwrap_or_else(|| (0..full.fields().len()).collect());
                let names: Vec<&str> = read.iter().map(|i| full.field(*i).name().as_str()).collect();
                let found = self.parquet_units(session, &files, &names, limit).await?;
                statistics.num_rows = match limit {
                    Some(limit) => Precision::Inexact(found.rows.min(limit)),
                    None if found.is_partial => Precision::Inexact(found.rows),
                    None => Precision::Exact(found.rows),
                };
                statistics.total_byte_size = Precision::Inexact(found.units.iter().map(|u| u.bytes).sum());
                memory.row_bytes = found.row_bytes;
                found.units
            }
            FileKind::Csv | FileKind::Json => {
                self.check_headers(&files).await?;
                memory.row_bytes = self.line_bytes(&files).await?;
                self.text_units(&files, &options)
            }
        };
        let bytes = units.iter().map(|u| u.bytes).sum();
        let tasks = self.options.override_num_blocks.unwrap_or_else(|| detect_parallelism(bytes, &options));
        let Packed { groups, held_bytes } = pack(&files.files, units, tasks);
        memory.task_bytes = held_bytes;
        // Declaring the partitioning keeps DataFusion from splitting the groups again and from stealing between them.
        let pinned = Partitioning::UnknownPartitioning(groups.len());
        let source = files.format.file_source(self.table_schema.clone());
        let config = FileScanConfigBuilder::new(files.url.object_store(), source)
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(columns)?
            .with_limit(limit)
            .with_output_partitioning(Some(pinned))
            .build();
        let scan = files.format.create_physical_plan(session, config).await?;
        let scan = match self.kind {
            FileKind::Parquet => with_page_offsets(scan),
            FileKind::Csv => with_places(scan, Shape::Csv),
            FileKind::Json if files.is_array => with_places(scan, Shape::JsonArray),
            FileKind::Json => with_places(scan, Shape::JsonLines),
        };
        let read = ReadExec::new(self.kind.read_name(), scan, session.config().target_partitions());
        Ok(read.with_memory(memory).into_plan())
    }
}
