//! CSV: values are told apart by their place in a line, so all files have the same columns in the same order.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::array::{RecordBatch, new_null_array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::arrow::csv::reader::Format;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_err};
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::format::{Files, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{
    ADVICE, Opening, byte_ranges, columns_by_rows, line_bytes, lines_before, opened_by, projected, with_types,
};
use super::tolerant::{BadLines, DecodeLines, Tolerant};
use crate::call::Argument;
use crate::error::{one_message, unknown_name};
use crate::functions::{Failures, MaxErrors, OnError};
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

    /// They are told apart by their place in a line.
    fn has_names(&self) -> bool {
        false
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
        let finish = match BadLines::of(self.failures(), session).map(Arc::new) {
            None => opened_by("csv", move |opening| open(opening, checked.clone())),
            Some(bad) => {
                let decode = Arc::new(CsvLines { delimiter: self.delimiter_byte()?.unwrap_or(b',') });
                let has_header = self.has_header.unwrap_or(true);
                opened_by("csv", move |opening| {
                    let (decode, bad) = (Arc::clone(&decode), Arc::clone(&bad));
                    projected(opening, |contents| Tolerant { contents, decode, has_header, bad })
                })
            }
        };
        Ok(Layout {
            units: byte_ranges(session, files, scan, !self.newlines_in_values, self.override_num_blocks),
            rows: Precision::Absent,
            bytes: Precision::Absent,
            row_bytes: line_bytes(files).await?,
            ranges: ValueRanges::default(),
            format: Arc::new(self.format(session, files.compression)?),
            opened: None,
            finish,
        })
    }
}

impl ReadCsvOptions {
    fn failures(&self) -> Failures {
        Failures { on_error: self.on_error.clone(), max_errors: self.max_errors }
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

/// The lines that have as many values as the first one: the others say nothing of the columns.
fn of_one_width(lines: &[u8], delimiter: u8, width: &mut Option<usize>) -> Bytes {
    let format = Format::default().with_header(false).with_delimiter(delimiter);
    let values = |line: &[u8]| format.infer_schema(line, None).map_or(0, |(schema, _)| schema.fields().len());
    let mut is_kept = |line: &&[u8]| {
        let found = values(line);
        found == *width.get_or_insert(found)
    };
    lines.split_inclusive(|byte| *byte == b'\n').filter(&mut is_kept).flatten().copied().collect()
}

/// Decodes lines of CSV.
struct CsvLines {
    delimiter: u8,
}

impl CsvLines {
    fn decode_as(&self, lines: &[u8], columns: SchemaRef) -> Result<RecordBatch> {
        // One more than there can be, so that all are decoded before they are asked for.
        let most = lines.iter().filter(|byte| **byte == b'\n').count() + 2;
        let builder = ReaderBuilder::new(Arc::clone(&columns)).with_delimiter(self.delimiter).with_batch_size(most);
        let mut decoder = builder.build_decoder();
        let mut rest = lines;
        while !rest.is_empty() {
            match decoder.decode(rest)? {
                0 => break,
                read => rest = &rest[read..],
            }
        }
        decoder.decode(&[])?;
        Ok(decoder.flush()?.unwrap_or_else(|| RecordBatch::new_empty(columns)))
    }
}

impl DecodeLines for CsvLines {
    fn decode(&self, lines: &[u8], columns: &SchemaRef) -> Result<RecordBatch> {
        self.decode_as(lines, Arc::clone(columns))
    }

    fn is_suspect(&self, line: &[u8], columns: &Schema) -> bool {
        let values = line.split(|byte| *byte == self.delimiter);
        let is_number = |value: &[u8]| str::from_utf8(value).is_ok_and(|text| text.parse::<f64>().is_ok());
        // Of what is in quotes nothing is seen at a glance.
        !line.contains(&b'"')
            && (values.clone().count() != columns.fields().len()
                || values
                    .zip(columns.fields())
                    .any(|(value, field)| field.data_type().is_numeric() && !value.is_empty() && !is_number(value)))
    }

    fn with_nulls(&self, line: &[u8], columns: &SchemaRef) -> Result<RecordBatch> {
        let texts: Vec<Field> = columns.fields().iter().map(|f| Field::new(f.name(), DataType::Utf8, true)).collect();
        let values = match self.decode_as(line, Arc::new(Schema::new(texts))) {
            Ok(values) if values.num_rows() == 1 => values,
            // It has more values than there are columns, or fewer.
            _ => {
                let nulls = columns.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
                return Ok(RecordBatch::try_new(Arc::clone(columns), nulls)?);
            }
        };
        let typed = values.columns().iter().zip(columns.fields()).map(|(value, field)| cast(value, field.data_type()));
        Ok(RecordBatch::try_new(Arc::clone(columns), typed.collect::<Result<_, _>>()?)?)
    }

    fn explain(&self, error: &DataFusionError, columns: &Schema) -> String {
        let message = one_message(error);
        let message = without_line(&message).map_or(message, |(message, _)| message);
        // The line itself is told beside it.
        let message = message.split(". Row data").next().unwrap_or_default().replace(" for line 1,", ":");
        with_name(&message, columns).unwrap_or(message)
    }
}
