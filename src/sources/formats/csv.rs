//! CSV: values are told apart by their place in a line, so all files have the same columns in the same order.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_err};
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::format::{Files, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{ADVICE, Opening, byte_ranges, columns_by_rows, line_bytes, opened_by, with_types};
use crate::call::Argument;
use crate::error::{one_message, unknown_name};
use crate::physical::ValueRanges;
use crate::sinks::CSV_EXTENSIONS;
use crate::sources::files::{CONCURRENT_HEADS, Listing, distinct_names, full_path, is_small, read_options};

/// The names of the columns of a file are in this many bytes.
const HEADER_BYTES: u64 = 64 << 10;

read_options! {
    /// How CSV files are read. Start from the default and set what differs.
    pub struct ReadCsvOptions: "read_csv", "The rows of CSV files." {
        /// Whether the first line has the names of the columns; true if not said.
        pub has_header: Option<bool>,
        /// What separates values; a comma if not said.
        pub delimiter: Option<char>,
        /// Whether values in quotes may have line breaks. A file is then read by one task. Otherwise such values are
        /// read wrongly when a file is cut into tasks.
        pub newlines_in_values: bool = default,
        /// Types of columns, in place of those that the first rows seem to have.
        pub types: Vec<(String, DataType)> = default,
    }
}

#[async_trait]
impl ReadFormat for ReadCsvOptions {
    fn read_name(&self) -> &'static str {
        "ReadCSV"
    }

    fn extensions(&self) -> &'static [&'static str] {
        CSV_EXTENSIONS
    }

    fn options(&self) -> ReadOptions {
        self.read_options()
    }

    /// They are told apart by their place in a line.
    fn has_names(&self) -> bool {
        false
    }

    fn check(&self) -> Result<()> {
        self.delimiter_byte().map(|_| ())
    }

    async fn columns(&self, session: &dyn Session, listing: &Listing, telling: &ObjectMeta) -> Result<Schema> {
        let format = self.format(session, listing.compression())?;
        // DataFusion's inference, without bringing columns of one name together.
        let infer = |rows| {
            let format = &format;
            async move {
                let rows = format.options().schema_infer_max_rec.unwrap_or(rows);
                let text =
                    listing.store.get(&telling.location).await?.into_stream().map_err(DataFusionError::from).boxed();
                let lines = format.read_to_delimited_chunks_from_stream(text);
                Ok(format.infer_schema_from_stream(session, rows, lines).await?.0)
            }
            .boxed()
        };
        let fields = columns_by_rows(session, listing, telling, infer).await?;
        with_types(fields, &self.types, |name, _, known| Err(unknown_name("column", name, self.read_name(), known)))
    }

    fn check_same_columns(&self, told: &Schema, found: &Schema) -> Result<()> {
        for (place, field) in told.fields().iter().enumerate() {
            let name = field.name();
            if found.fields().get(place).is_none_or(|field| field.name() != name) {
                return plan_err!(
                    "column '{name}' is no longer where it was when the table was made; make the table or view again"
                );
            }
        }
        let (now, before) = (found.fields().len(), told.fields().len());
        if now != before {
            return plan_err!(
                "there are {now} columns now and were {before} when the table was made; make the table or view again"
            );
        }
        Ok(())
    }

    async fn lay_out(&self, session: &dyn Session, files: &Files, scan: &Scan<'_>) -> Result<Layout> {
        self.check_headers(files).await?;
        // Those of small files come with all else.
        let is_checked_later = files.pinned.is_some() && self.has_headers(files);
        let checked = is_checked_later.then(|| self.clone());
        Ok(Layout {
            units: byte_ranges(session, files, scan, !self.newlines_in_values, self.override_num_blocks),
            rows: Precision::Absent,
            bytes: Precision::Absent,
            row_bytes: line_bytes(files).await?,
            ranges: ValueRanges::default(),
            format: Arc::new(self.format(session, files.compression)?),
            opened: None,
            finish: opened_by("csv", move |opening| open(opening, checked.clone())),
        })
    }
}

impl ReadCsvOptions {
    /// DataFusion's format.
    fn format(&self, session: &dyn Session, compression: FileCompressionType) -> Result<CsvFormat> {
        let defaults = session.default_table_options().csv;
        let format = CsvFormat::default().with_options(defaults).with_file_compression_type(compression);
        let format = format.with_has_header(self.has_header.unwrap_or(true));
        let format = format.with_newlines_in_values(self.newlines_in_values);
        Ok(match self.delimiter_byte()? {
            Some(delimiter) => format.with_delimiter(delimiter),
            None => format,
        })
    }

    /// The byte that separates values. Fails where that would be several.
    fn delimiter_byte(&self) -> Result<Option<u8>> {
        match self.delimiter {
            Some(delimiter) if !delimiter.is_ascii() => {
                plan_err!("delimiter must be {}, got '{delimiter}'", char::WHAT)
            }
            delimiter => Ok(delimiter.map(|delimiter| delimiter as u8)),
        }
    }

    /// Fails where a file has other columns than the table, or in another order.
    async fn check_headers(&self, files: &Files) -> Result<()> {
        if !self.has_headers(files) {
            return Ok(());
        }
        let is_checked_now = |file: &&ObjectMeta| file.size > 0 && (files.pinned.is_none() || !is_small(file));
        let now: Vec<_> = files.files.iter().map(|file| &file.object_meta).filter(is_checked_now).cloned().collect();
        let headers = stream::iter(now).map(|meta| async move {
            let path = full_path(&files.url, &meta.location);
            self.check_header(files.store.as_ref(), &meta, &path, &files.columns).await
        });
        headers.buffered(CONCURRENT_HEADS).try_collect().await
    }

    /// Whether files say the names of their columns, and these can be compared.
    fn has_headers(&self, files: &Files) -> bool {
        self.has_header.unwrap_or(true) && !files.compression.is_compressed() && files.files.len() > 1
    }

    /// Fails where a file has other columns than the table, or in another order. An empty one has none, and no rows.
    async fn check_header(
        &self,
        store: &dyn ObjectStore,
        meta: &ObjectMeta,
        path: &str,
        columns: &Schema,
    ) -> Result<()> {
        if meta.size == 0 {
            return Ok(());
        }
        let head = store.get_range(&meta.location, 0..meta.size.min(HEADER_BYTES)).await?;
        let delimiter = self.delimiter_byte()?.unwrap_or(b',');
        let format = Format::default().with_header(true).with_delimiter(delimiter);
        let (schema, _) = format.infer_schema(head.as_ref(), Some(0))?;
        let names: Vec<String> = distinct_names(schema.fields()).iter().map(|f| f.name().clone()).collect();
        let expected: Vec<&String> = columns.fields().iter().map(|f| f.name()).collect();
        if !names.iter().eq(expected.iter().copied()) {
            return plan_err!("the columns of '{path}' are {names:?}, but those of the first file are {expected:?}");
        }
        Ok(())
    }
}

/// Opens files with errors that tell where a row is that does not fit the columns.
fn open(opening: Opening<'_>, checked: Option<ReadCsvOptions>) -> Result<Arc<dyn FileOpener>> {
    let Opening { source, store, config, partition, root, .. } = opening;
    let inner = source.create_file_opener(Arc::clone(&store), config, partition)?;
    let columns = Arc::clone(source.table_schema().file_schema());
    Ok(Arc::new(CsvPlaces { inner, store, root, columns, checked }))
}

/// Opens CSV files. The errors of the decoder count lines from where it began to read.
struct CsvPlaces {
    inner: Arc<dyn FileOpener>,
    store: Arc<dyn ObjectStore>,
    root: String,
    columns: SchemaRef,
    /// How the headers of small files are read, which nobody has looked at.
    checked: Option<ReadCsvOptions>,
}

impl FileOpener for CsvPlaces {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let opened = self.inner.open(file.clone())?;
        let (store, root, columns) = (Arc::clone(&self.store), self.root.clone(), Arc::clone(&self.columns));
        let checked = self.checked.clone().filter(|_| is_small(&file.object_meta));
        Ok(Box::pin(async move {
            if let Some(options) = checked {
                let path = format!("{root}{}", file.object_meta.location);
                options.check_header(store.as_ref(), &file.object_meta, &path, &columns).await?;
            }
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
