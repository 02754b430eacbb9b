//! Ray's `read_parquet`, `read_csv`, `read_json`: files as a table with read tasks.
//!
//! The schema comes from the first file; other footers are opened only when the table is scanned.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, Statistics, plan_err};
use datafusion::config::CsvOptions;
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::FileScanConfigBuilder;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::Expr;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectStore, ObjectStoreExt};

use super::file_tasks::{Packed, Unit, detect_parallelism, pack};
use super::listing::{ListedFile, list_files};
use super::parquet::{self, ParquetUnits};
use crate::block::without_views;
use crate::config::BlockyardOptions;
use crate::error::{ErrorContext, unknown_name};
use crate::physical::{ReadExec, ReadMemory};

/// Footers that are read at once.
const CONCURRENT_FOOTERS: usize = 32;

/// The names of the columns of a CSV file are in this many bytes.
const HEADER_BYTES: u64 = 64 << 10;

/// The length of lines is taken from this many bytes.
const SAMPLE_BYTES: u64 = 1 << 20;

/// Bytes that a reader of text holds: what it fetched and has not yet decoded.
const TEXT_BUFFER_BYTES: usize = 1 << 20;

/// The directory that stands for a null value.
const HIVE_NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// A format that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Apache Parquet.
    Parquet,
    /// Comma-separated values, with a header line unless said otherwise.
    Csv,
    /// One JSON object per line.
    Json,
}

impl FileKind {
    /// Ray's name of the read.
    fn read_name(self) -> &'static str {
        match self {
            Self::Parquet => "ReadParquet",
            Self::Csv => "ReadCSV",
            Self::Json => "ReadJSON",
        }
    }

    fn name(self) -> &'static str {
        self.extensions()[0]
    }

    /// What a path names, by how it or the files in the directory end.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let all = [Self::Parquet, Self::Csv, Self::Json];
        let of_name = |name: &str| {
            let name = name.to_lowercase();
            let ends = |e: &str| name.split('.').skip(1).any(|part| part == e);
            all.into_iter().find(|kind| kind.extensions().iter().any(|e| ends(e)))
        };
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        of_name(last).or_else(|| {
            let mut names: Vec<String> = std::fs::read_dir(path)
                .ok()?
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names.iter().find_map(|name| of_name(name))
        })
    }

    /// How names of files end that a directory is searched for.
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Parquet => &["parquet"],
            Self::Csv => &["csv"],
            Self::Json => &["json", "jsonl", "ndjson"],
        }
    }

    fn format(
        self,
        session: &dyn Session,
        options: &ReadOptions,
        compression: FileCompressionType,
    ) -> Arc<dyn FileFormat> {
        match self {
            Self::Parquet => Arc::new(ParquetFormat::default().with_options(session.default_table_options().parquet)),
            Self::Csv => {
                let defaults: CsvOptions = session.default_table_options().csv;
                let format = CsvFormat::default().with_options(defaults).with_file_compression_type(compression);
                let format = format.with_has_header(options.has_header.unwrap_or(true));
                let format = format.with_newlines_in_values(options.newlines_in_values);
                Arc::new(match options.delimiter {
                    Some(delimiter) => format.with_delimiter(delimiter),
                    None => format,
                })
            }
            Self::Json => Arc::new(JsonFormat::default().with_file_compression_type(compression)),
        }
    }
}

/// How files are read. Start from the default and set what differs.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Only these columns, in this order. Others are not read.
    pub columns: Option<Vec<String>>,
    /// This many read tasks, as far as files and row groups allow, instead of as many as the size asks for.
    pub override_num_blocks: Option<usize>,
    /// Adds a column `path` with the path of each row's file.
    pub include_paths: bool,
    /// CSV: whether the first line has the names of the columns. Default: true.
    pub has_header: Option<bool>,
    /// CSV: what separates values. Default: a comma.
    pub delimiter: Option<u8>,
    /// CSV: values in quotes may have line breaks. A file is then read by one task. Default: false, which reads such
    /// values wrongly when a file is cut into tasks.
    pub newlines_in_values: bool,
}

/// Files as a table.
pub(crate) struct FileTable {
    kind: FileKind,
    format: Arc<dyn FileFormat>,
    url: ListingTableUrl,
    store: Arc<dyn ObjectStore>,
    files: Vec<PartitionedFile>,
    table_schema: TableSchema,
    columns: Option<Vec<usize>>,
    schema: SchemaRef,
    splittable: bool,
    compressed: bool,
    paths: Vec<String>,
    options: ReadOptions,
}

impl fmt::Debug for FileTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} files)", self.kind.read_name(), self.files.len())
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
        if options.override_num_blocks == Some(0) {
            return plan_err!("override_num_blocks must be at least 1, got 0");
        }
        let (url, store, listed) = list_files(session.runtime_env(), paths, kind.extensions()).await?;
        let compression = compression_of(&listed[0]);
        let compressed = compression != FileCompressionType::UNCOMPRESSED;
        let splittable = kind == FileKind::Parquet
            || (compression == FileCompressionType::UNCOMPRESSED && !options.newlines_in_values);
        let format = kind.format(session, options, compression);
        // A file without bytes has no columns to tell, except that every Parquet file must have some.
        let telling = listed.iter().find(|f| f.meta.size > 0 || kind == FileKind::Parquet).unwrap_or(&listed[0]);
        let file_schema = format
            .infer_schema(session, &store, std::slice::from_ref(&telling.meta))
            .await
            .while_doing(|| format!("reading the columns of '{}'", full_path(&url, &telling.meta.location)))?;
        // What is said of views in ARCHITECTURE.md under T10.
        let views = session.config_options().execution.parquet.schema_force_view_types;
        let file_schema = if views { file_schema } else { Arc::new(without_views(&file_schema)) };
        // Another file may lack a column, or have nulls where the first has none.
        let file_schema = if listed.len() > 1 { Arc::new(nullable(&file_schema)) } else { file_schema };
        let (hive, files) = partition_columns(&url, &listed, options.include_paths)?;
        for field in &hive {
            if file_schema.field_with_name(field.name()).is_ok() {
                return plan_err!("column '{}' is both in the files and in their paths", field.name());
            }
        }
        let table_schema = TableSchema::builder(file_schema).with_table_partition_cols(hive).build();
        let full = Arc::clone(table_schema.table_schema());
        let columns = options.columns.as_ref().map(|names| resolve_columns(&full, names, kind)).transpose()?;
        let schema = match &columns {
            Some(columns) => Arc::new(full.project(columns)?),
            None => full,
        };
        let (paths, options) = (paths.to_vec(), options.clone());
        Ok(Self {
            kind,
            format,
            url,
            store,
            files,
            table_schema,
            columns,
            schema,
            splittable,
            compressed,
            paths,
            options,
        })
    }

    /// Ray's name of the read.
    pub(crate) fn read_name(&self) -> &'static str {
        self.kind.read_name()
    }

    /// The table function that makes this table in SQL.
    pub(crate) fn sql_call(&self) -> String {
        let list = |texts: &[String]| {
            let quoted: Vec<String> = texts.iter().map(|t| format!("'{}'", t.replace('\'', "''"))).collect();
            format!("[{}]", quoted.join(", "))
        };
        let ReadOptions { columns, override_num_blocks, include_paths, has_header, delimiter, newlines_in_values } =
            &self.options;
        let mut call = format!("read_{}({}", self.kind.name(), list(&self.paths));
        call.extend(columns.as_ref().map(|c| format!(", columns => {}", list(c))));
        call.extend(override_num_blocks.map(|n| format!(", override_num_blocks => {n}")));
        call.extend(include_paths.then(|| ", include_paths => true".to_owned()));
        call.extend(has_header.map(|h| format!(", has_header => {h}")));
        call.extend(delimiter.map(|d| format!(", delimiter => '{}'", char::from(d))));
        call.extend(newlines_in_values.then(|| ", newlines_in_values => true".to_owned()));
        call + ")"
    }

    /// Paths of the files.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.files.iter().map(|f| full_path(&self.url, &f.object_meta.location)).collect()
    }

    /// Rows by the footers, where the format has footers.
    pub(crate) async fn count_by_metadata(&self, session: &dyn Session) -> Result<Option<usize>> {
        match self.kind {
            FileKind::Parquet => {
                let found = self.parquet_units(session, &[], None).await?;
                Ok((!found.is_partial).then_some(found.rows))
            }
            FileKind::Csv | FileKind::Json => Ok(None),
        }
    }

    /// Row groups of the files, for a scan of these columns: of all files, or of as many as have `rows` rows.
    async fn parquet_units(
        &self,
        session: &dyn Session,
        columns: &[&str],
        rows: Option<usize>,
    ) -> Result<ParquetUnits> {
        let cache = session.runtime_env().cache_manager.get_file_metadata_cache();
        let may_fail = BlockyardOptions::from_config(session.config_options()).max_errored_blocks.allows_any();
        let footer_of = |(file, part): (usize, PartitionedFile)| {
            let (store, cache) = (Arc::clone(&self.store), Arc::clone(&cache));
            let (schema, url) = (Arc::clone(self.table_schema.file_schema()), self.url.clone());
            async move {
                let meta = &part.object_meta;
                let footer = DFParquetMetadata::new(store.as_ref(), meta)
                    .with_file_metadata_cache(Some(cache))
                    .fetch_metadata()
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
                Ok(parquet::units(file, meta.size, &footer, columns)) as Result<_>
            }
        };
        let mut files = self.files.iter().cloned().enumerate();
        let mut found = ParquetUnits::default();
        // A few rows are in the first file, or soon after it.
        let mut at_once = if rows.is_some() { 1 } else { CONCURRENT_FOOTERS };
        while found.units.is_empty() || rows.is_none_or(|rows| found.rows < rows) {
            let next = match rows {
                Some(_) => files.by_ref().take(at_once).collect::<Vec<_>>(),
                None => files.by_ref().collect(),
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
    async fn check_headers(&self) -> Result<()> {
        let named = self.kind == FileKind::Csv && self.options.has_header.unwrap_or(true);
        if !named || self.compressed || self.files.len() < 2 {
            return Ok(());
        }
        // An empty file has no header, and no rows.
        let files: Vec<_> = self.files.iter().filter(|file| file.object_meta.size > 0).cloned().collect();
        let headers = stream::iter(files).map(|file| async move {
            let meta = &file.object_meta;
            let head = self.store.get_range(&meta.location, 0..meta.size.min(HEADER_BYTES)).await?;
            let delimiter = self.options.delimiter.unwrap_or(b',');
            let format = Format::default().with_header(true).with_delimiter(delimiter);
            let (schema, _) = format.infer_schema(head.as_ref(), Some(0))?;
            let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
            let expected: Vec<&String> = self.table_schema.file_schema().fields().iter().map(|f| f.name()).collect();
            if !names.iter().eq(expected.iter().copied()) {
                return plan_err!(
                    "the columns of '{}' are {names:?}, but those of the first file are {expected:?}",
                    full_path(&self.url, &meta.location)
                );
            }
            Ok(())
        });
        headers.buffered(CONCURRENT_FOOTERS).try_collect().await
    }

    /// Bytes of a line, by the first lines of the first file that has any.
    async fn line_bytes(&self) -> Result<usize> {
        let Some(file) = self.files.iter().find(|f| f.object_meta.size > 0).filter(|_| !self.compressed) else {
            return Ok(0);
        };
        let meta = &file.object_meta;
        let head = self.store.get_range(&meta.location, 0..meta.size.min(SAMPLE_BYTES)).await?;
        Ok(head.len() / head.iter().filter(|byte| **byte == b'\n').count().max(1))
    }

    /// Byte ranges of text files.
    fn text_units(&self, options: &BlockyardOptions) -> Vec<Unit> {
        let total: u64 = self.files.iter().map(|f| f.object_meta.size).sum();
        let tasks = self.options.override_num_blocks.unwrap_or_else(|| detect_parallelism(total as usize, options));
        let smallest =
            if self.options.override_num_blocks.is_some() { 1 } else { options.target_min_block_size.0.max(1) as u64 };
        let piece = total.div_ceil(tasks as u64).max(smallest);
        let mut units = Vec::new();
        for (file, meta) in self.files.iter().map(|f| &f.object_meta).enumerate() {
            let pieces = if self.splittable { meta.size.div_ceil(piece).max(1) } else { 1 };
            let cut = |k: u64| k * meta.size / pieces;
            let unit = |k| Unit {
                file,
                range: (cut(k), cut(k + 1)),
                // Lines are not counted before they are read.
                first_row: (k == 0).then_some(0),
                bytes: (cut(k + 1) - cut(k)) as usize,
                held_bytes: TEXT_BUFFER_BYTES,
            };
            units.extend((0..pieces).map(unit));
        }
        units
    }
}

/// A file whose values would have to be changed to fit the columns of the first file is an error.
fn check_types(expected: &Schema, footer: &ParquetMetaData) -> Result<()> {
    let metadata = footer.file_metadata();
    let found = parquet_to_arrow_schema(metadata.schema_descr(), metadata.key_value_metadata())?;
    for field in found.fields() {
        let Ok(wanted) = expected.field_with_name(field.name()) else {
            continue;
        };
        if !fits(field.data_type(), wanted.data_type()) {
            return plan_err!(
                "column '{}' is {} here, but {} in the first file",
                field.name(),
                field.data_type(),
                wanted.data_type()
            );
        }
    }
    Ok(())
}

/// Whether every value of one type is a value of the other.
fn fits(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Date32, Date64, Dictionary, Float32, LargeBinary, LargeUtf8, Null, Utf8, Utf8View,
    };
    let text =
        |t: &DataType| matches!(t, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | Dictionary(..));
    match (from, to) {
        (from, to) if from == to || from.is_nested() && to.is_nested() || text(from) && text(to) => true,
        (Null, _) | (Float32, DataType::Float64) | (Date32, Date64) => true,
        (DataType::Timestamp(..), DataType::Timestamp(..)) => true,
        (DataType::Decimal128(p, s), DataType::Decimal128(q, t)) => s == t && p <= q,
        (from, to) if from.is_signed_integer() && to.is_signed_integer() => {
            from.primitive_width() <= to.primitive_width()
        }
        (from, to) if from.is_unsigned_integer() && to.is_integer() => from.primitive_width() < to.primitive_width(),
        (from, DataType::Float64) if from.is_integer() => from.primitive_width() < Some(8),
        _ => false,
    }
}

/// A path that can be read again: absolute on local disks, a URL elsewhere.
fn full_path(url: &ListingTableUrl, location: &object_store::path::Path) -> String {
    match url.scheme() {
        "file" => format!("/{location}"),
        _ => format!("{}{location}", url.object_store()),
    }
}

fn nullable(schema: &Schema) -> Schema {
    let fields: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn compression_of(file: &ListedFile) -> FileCompressionType {
    match file.meta.location.extension() {
        Some("gz") => FileCompressionType::GZIP,
        Some("bz2") => FileCompressionType::BZIP2,
        Some("xz") => FileCompressionType::XZ,
        Some("zst") => FileCompressionType::ZSTD,
        _ => FileCompressionType::UNCOMPRESSED,
    }
}

/// The columns that paths give, and the files with their values. Integers where all values are, else strings.
fn partition_columns(
    url: &ListingTableUrl,
    listed: &[ListedFile],
    include_paths: bool,
) -> Result<(Vec<FieldRef>, Vec<PartitionedFile>)> {
    let names: Vec<&String> = listed[0].hive.iter().map(|(name, _)| name).collect();
    let distinct: BTreeSet<Vec<&String>> = listed.iter().map(|f| f.hive.iter().map(|(n, _)| n).collect()).collect();
    if distinct.len() > 1 {
        return plan_err!("files have different partition directories: {distinct:?}");
    }
    let integers = |i: usize| listed.iter().all(|f| f.hive[i].1 == HIVE_NULL || f.hive[i].1.parse::<i64>().is_ok());
    let mut fields: Vec<FieldRef> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let kind = if integers(i) { DataType::Int64 } else { DataType::Utf8 };
        fields.push(Arc::new(Field::new(name.as_str(), kind, true)));
    }
    if include_paths {
        fields.push(Arc::new(Field::new("path", DataType::Utf8, false)));
    }
    let file = |listed: &ListedFile| {
        let mut values: Vec<ScalarValue> = Vec::new();
        for (field, (_, value)) in fields.iter().zip(&listed.hive) {
            values.push(match field.data_type() {
                DataType::Int64 => ScalarValue::Int64(value.parse().ok()),
                _ => ScalarValue::Utf8((value != HIVE_NULL).then(|| value.clone())),
            });
        }
        if include_paths {
            values.push(ScalarValue::Utf8(Some(full_path(url, &listed.meta.location))));
        }
        PartitionedFile::new_from_meta(listed.meta.clone()).with_partition_values(values)
    };
    let files = listed.iter().map(file).collect();
    Ok((fields, files))
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
                let found = self.parquet_units(session, &names, limit).await?;
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
                self.check_headers().await?;
                memory.row_bytes = self.line_bytes().await?;
                self.text_units(&options)
            }
        };
        let bytes = units.iter().map(|u| u.bytes).sum();
        let tasks = self.options.override_num_blocks.unwrap_or_else(|| detect_parallelism(bytes, &options));
        let Packed { groups, held_bytes } = pack(&self.files, units, tasks);
        memory.task_bytes = held_bytes;
        // Declaring the partitioning keeps DataFusion from splitting the groups again and from stealing between them.
        let pinned = Partitioning::UnknownPartitioning(groups.len());
        let source = self.format.file_source(self.table_schema.clone());
        let config = FileScanConfigBuilder::new(self.url.object_store(), source)
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(columns)?
            .with_limit(limit)
            .with_output_partitioning(Some(pinned))
            .build();
        let scan = self.format.create_physical_plan(session, config).await?;
        let read = ReadExec::new(self.kind.read_name(), scan, session.config().target_partitions());
        Ok(Arc::new(read.with_memory(memory)))
    }
}
