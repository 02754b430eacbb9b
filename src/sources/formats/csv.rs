//! CSV: values are told apart by their place in a line, so all files have the same columns in the same order; or each
//! is read by the names in its header.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
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
use memchr::memchr_iter;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use self::by_header::{ByHeader, HEADER_BYTES, Headers, reader_of};
use self::lines::CsvLines;
use self::messages::{with_name, without_line};
use super::format::{Files, Finish, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{
    ADVICE, Contents, Opening, byte_ranges, columns_by_rows, line_bytes, lines_before, opened_by, projected, with_types,
};
use super::tolerant::{BadLines, Tolerant};
use crate::call::Argument;
use crate::error::{one_message, unknown_name};
use crate::functions::{Failures, MaxErrors, OnError};
use crate::physical::ValueRanges;
use crate::sinks::CSV_EXTENSIONS;
use crate::sources::files::{CONCURRENT_HEADS, FileSchema, Listing, distinct_names, full_path, is_small, read_options};

mod by_header;
mod lines;
mod messages;

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
        /// What becomes of lines that do not fit the columns: `fail`, `skip`, `null` (values that do not fit are null)
        /// or `divert`.
        pub on_error: OnError,
        /// How many lines may not fit, like `100` or `0.5%`; any number if not said.
        pub max_errors: Option<MaxErrors>,
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

    /// They are told apart by their place in a line, of which the first line may have names.
    fn has_names(&self) -> bool {
        self.has_header.unwrap_or(true)
    }

    /// Text has room for all that is written as text. A number with a point has room for one without.
    fn common_type(&self, one: &DataType, other: &DataType) -> Option<DataType> {
        let is_time = |kind: &DataType| matches!(kind, DataType::Date32 | DataType::Timestamp(..));
        Some(match (one, other) {
            (one, other) if one.is_numeric() && other.is_numeric() => DataType::Float64,
            (time @ DataType::Timestamp(..), other) | (other, time @ DataType::Timestamp(..)) if is_time(other) => {
                time.clone()
            }
            _ => DataType::Utf8,
        })
    }

    fn check_columns(&self, columns: &Schema) -> Result<()> {
        let known: Vec<&str> = columns.fields().iter().map(|field| field.name().as_str()).collect();
        match self.types.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(unknown_name("column", name, self.read_name(), &known)),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        self.failures().check()?;
        if self.newlines_in_values && self.on_error != OnError::Fail {
            return plan_err!("on_error tells lines apart, and newlines_in_values says that they are not rows");
        }
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
                let mut lines = format.read_to_delimited_chunks_from_stream(text);
                if self.on_error != OnError::Fail {
                    let (mut width, delimiter) = (None, self.delimiter_byte()?.unwrap_or(b','));
                    lines = lines.map_ok(move |lines| of_one_width(&lines, delimiter, &mut width)).boxed();
                }
                Ok(format.infer_schema_from_stream(session, rows, lines).await?.0)
            }
            .boxed()
        };
        let fields = columns_by_rows(session, listing, telling, infer).await?;
        // Of those of all files each is in some.
        let has = |name: &String| fields.iter().any(|field| field.name() == name);
        let types: Vec<_> = self.types.iter().filter(|(name, _)| has(name)).cloned().collect();
        with_types(fields, &types, |name, _, known| Err(unknown_name("column", name, self.read_name(), known)))
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
        let bad = BadLines::of(self.failures(), session).map(Arc::new);
        let finish = match self.schema {
            FileSchema::First => {
                self.check_headers(files).await?;
                // Those of small files come with all else.
                let is_checked_later = files.pinned.is_some() && self.has_headers(files);
                self.opened(bad, is_checked_later.then(|| self.clone()))?
            }
            FileSchema::Union => self.opened_by_header(bad, self.format(session, files.compression)?)?,
        };
        Ok(Layout {
            units: byte_ranges(session, files, scan, !self.newlines_in_values, self.override_num_blocks),
            rows: Precision::Absent,
            bytes: Precision::Absent,
            row_bytes: line_bytes(files).await?,
            ranges: ValueRanges::default(),
            format: Arc::new(self.format(session, files.compression)?),
            opened: None,
            row_groups: (0, 0),
            left_out: Vec::new(),
            finish,
        })
    }
}

impl ReadCsvOptions {
    fn failures(&self) -> Failures {
        Failures { on_error: self.on_error.clone(), max_errors: self.max_errors }
    }

    /// How files of the same columns are opened.
    fn opened(&self, bad: Option<Arc<BadLines>>, checked: Option<Self>) -> Result<Finish> {
        let Some(bad) = bad else { return Ok(opened_by("csv", move |opening| open(opening, checked.clone()))) };
        let (decode, has_header) = (Arc::new(self.lines()?), self.has_header.unwrap_or(true));
        Ok(opened_by("csv", move |opening| {
            let (decode, bad) = (Arc::clone(&decode), Arc::clone(&bad));
            projected(opening, |contents| Tolerant { contents, decode, has_header, bad })
        }))
    }

    /// How files of different columns are opened.
    fn opened_by_header(&self, bad: Option<Arc<BadLines>>, format: CsvFormat) -> Result<Finish> {
        let (headers, decode) = (Arc::<Headers>::default(), Arc::new(self.lines()?));
        let (delimiter, options) = (decode.delimiter, Arc::new(format.options().clone()));
        Ok(opened_by("csv", move |opening| {
            let (headers, bad, options) = (Arc::clone(&headers), bad.clone(), Arc::clone(&options));
            let decode = Arc::clone(&decode);
            let open = move |contents: Contents| match &bad {
                Some(bad) => {
                    let (decode, bad) = (Arc::clone(&decode), Arc::clone(bad));
                    Ok(Arc::new(Tolerant { contents, decode, has_header: true, bad }) as Arc<dyn FileOpener>)
                }
                None => {
                    let (inner, columns) = (reader_of(&contents, &options)?, Arc::clone(&contents.file_schema));
                    let Contents { store, root, .. } = contents;
                    Ok(Arc::new(CsvPlaces { inner, store, root, columns, checked: None }) as Arc<dyn FileOpener>)
                }
            };
            projected(opening, |contents| ByHeader { contents, headers, delimiter, open: Arc::new(open) })
        }))
    }

    /// How lines are decoded by themselves.
    fn lines(&self) -> Result<CsvLines> {
        Ok(CsvLines { delimiter: self.delimiter_byte()?.unwrap_or(b',') })
    }

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
    let (before, _) = lines_before(store, file, (0, 0), start).await.unwrap_or_default();
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

/// The lines that have as many values as the first one, in quotes that end: the others say nothing of the columns.
fn of_one_width(lines: &[u8], delimiter: u8, width: &mut Option<usize>) -> Bytes {
    let format = Format::default().with_header(false).with_delimiter(delimiter);
    let values = |line: &[u8]| format.infer_schema(line, None).map_or(0, |(schema, _)| schema.fields().len());
    let mut is_kept = |line: &&[u8]| {
        let found = values(line);
        let is_whole = memchr_iter(b'"', line).count().is_multiple_of(2);
        is_whole && found == *width.get_or_insert(found)
    };
    lines.split_inclusive(|byte| *byte == b'\n').filter(&mut is_kept).flatten().copied().collect()
}
