//! CSV: values are told apart by their place in a line, so all files have the same columns in the same order; or each
//! is read by the names in its header.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::catalog::Session;
use datafusion::common::config::CsvOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, plan_datafusion_err, plan_err};
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::FileOpener;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStoreExt};

use self::by_header::{ByHeader, Headers, check_header};
use self::first_rows::{first_lines, first_rows};
use self::lines::CsvLines;
use self::rows::CsvRows;
use super::format::{Files, Finish, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{Contents, byte_ranges, columns_by_rows, decompressed, line_bytes, opened_by, projected, with_types};
use super::tolerant::{BadLines, Tolerant};
use crate::call::Argument;
use crate::error::unknown_name;
use crate::functions::{Failures, MaxErrors, OnError};
use crate::physical::ValueRanges;
use crate::sinks::CSV_EXTENSIONS;
use crate::sources::files::{CONCURRENT_HEADS, FileSchema, Listing, full_path, is_small, read_options};
use futures::future::BoxFuture;

mod by_header;
mod dialect;
mod first_rows;
mod lines;
mod messages;
mod quotes;
mod rows;

read_options! {
    /// How CSV files are read. Start from the default and set what differs.
    pub struct ReadCsvOptions: "read_csv", "The rows of CSV files." {
        /// Whether the first line has the names of the columns; true if not said.
        pub has_header: Option<bool>,
        /// What separates values; a comma if not said.
        pub delimiter: Option<char>,
        /// Whether values in quotes may have line breaks. A file is then read by one task. Otherwise such a value is
        /// an error where a file is cut into tasks in the middle of it.
        pub newlines_in_values: bool = default,
        /// Types of columns, in place of those that the first rows seem to have.
        pub types: Vec<(String, DataType)> = default,
        /// What becomes of lines that do not fit the columns: `fail`, `skip`, `null` (values that do not fit are null)
        /// or `divert`.
        pub on_error: OnError,
        /// How many lines may not fit, like `100` or `0.5%`; any number if not said.
        pub max_errors: Option<MaxErrors>,
        /// What values with special characters stand in; a double quote if not said. In a value it is written twice.
        pub quote: Option<char>,
        /// What a quote in a value may have before it instead.
        pub escape: Option<char>,
        /// What lines begin with that are not rows.
        pub comment: Option<char>,
        /// Whether rows may have fewer values than there are columns: the last ones are null.
        pub truncated_rows: Option<bool>,
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

    fn tolerates(&self) -> bool {
        self.on_error != OnError::Fail
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
        let signs = [self.delimiter, self.quote, self.escape, self.comment];
        let mut signs: Vec<char> = signs.into_iter().flatten().collect();
        signs.sort_unstable();
        match signs.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => plan_err!("'{}' is said to be two different signs of {}", pair[0], self.read_name()),
            None => Ok(()),
        }
    }

    async fn columns(&self, session: &dyn Session, listing: &Listing, telling: &ObjectMeta) -> Result<Schema> {
        let format = self.format(session, listing.compression())?;
        // DataFusion's inference, without bringing columns of one name together.
        let infer = |rows| {
            let format = &format;
            async move {
                let rows = format.options().schema_infer_max_rec.unwrap_or(rows);
                let text = listing.store.get(&telling.location).await?.into_stream().map_err(DataFusionError::from);
                let text = decompressed(listing.compression(), text.boxed())?;
                let first = match self.on_error {
                    OnError::Fail => first_rows(text, rows, format.options()).await?,
                    _ => first_lines(text, rows, format.options(), self.has_header.unwrap_or(true)).await?,
                };
                let first = stream::once(std::future::ready(Ok(first))).boxed();
                Ok(format.infer_schema_from_stream(session, rows, first).await?.0)
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

    fn lay_out<'a>(
        &'a self,
        session: &'a dyn Session,
        files: &'a Files,
        scan: &'a Scan<'a>,
    ) -> BoxFuture<'a, Result<Layout>> {
        async move {
            let bad = BadLines::of(self.failures(), session).map(Arc::new);
            let format = self.format(session, files.compression)?;
            let finish = match self.schema {
                FileSchema::First => {
                    self.check_headers(files, format.options()).await?;
                    // Those of small files come with all else.
                    let is_checked_later = files.pinned.is_some() && self.has_headers(files);
                    self.opened(bad, &format, is_checked_later)?
                }
                FileSchema::Union => self.opened_by_header(bad, &format)?,
            };
            Ok(Layout {
                units: byte_ranges(session, files, scan, !self.newlines_in_values, self.override_num_blocks),
                rows: Precision::Absent,
                bytes: Precision::Absent,
                row_bytes: line_bytes(files).await?,
                ranges: ValueRanges::default(),
                format: Arc::new(format),
                opened: None,
                row_groups: (0, 0),
                left_out: Vec::new(),
                finish,
            })
        }
        .boxed()
    }
}

impl ReadCsvOptions {
    fn failures(&self) -> Failures {
        Failures { on_error: self.on_error.clone(), max_errors: self.max_errors }
    }

    /// How files of the same columns are opened.
    fn opened(&self, bad: Option<Arc<BadLines>>, format: &CsvFormat, checks_headers: bool) -> Result<Finish> {
        let options = Arc::new(format.options().clone());
        let Some(bad) = bad else {
            return Ok(opened_by("csv", move |opening| {
                let options = Arc::clone(&options);
                projected(opening, |contents| CsvRows { contents, options, checks_headers })
            }));
        };
        let decode = Arc::new(CsvLines { options: format.options().clone() });
        let has_header = self.has_header.unwrap_or(true);
        Ok(opened_by("csv", move |opening| {
            let (decode, bad) = (Arc::clone(&decode), Arc::clone(&bad));
            projected(opening, |contents| Tolerant { contents, decode, has_header, bad })
        }))
    }

    /// How files of different columns are opened.
    fn opened_by_header(&self, bad: Option<Arc<BadLines>>, format: &CsvFormat) -> Result<Finish> {
        let (headers, options) = (Arc::<Headers>::default(), Arc::new(format.options().clone()));
        let decode = Arc::new(CsvLines { options: format.options().clone() });
        Ok(opened_by("csv", move |opening| {
            let (headers, bad, options) = (Arc::clone(&headers), bad.clone(), Arc::clone(&options));
            let (decode, dialect) = (Arc::clone(&decode), Arc::clone(&options));
            let open = move |contents: Contents| match &bad {
                Some(bad) => {
                    let (decode, bad) = (Arc::clone(&decode), Arc::clone(bad));
                    Ok(Arc::new(Tolerant { contents, decode, has_header: true, bad }) as Arc<dyn FileOpener>)
                }
                None => {
                    let options = Arc::clone(&options);
                    Ok(Arc::new(CsvRows { contents, options, checks_headers: false }) as Arc<dyn FileOpener>)
                }
            };
            projected(opening, |contents| ByHeader { contents, headers, options: dialect, open: Arc::new(open) })
        }))
    }

    /// DataFusion's format.
    fn format(&self, session: &dyn Session, compression: FileCompressionType) -> Result<CsvFormat> {
        let defaults = session.default_table_options().csv;
        let format = CsvFormat::default().with_options(defaults).with_file_compression_type(compression);
        let format = format.with_has_header(self.has_header.unwrap_or(true));
        let mut format = format.with_newlines_in_values(self.newlines_in_values);
        if let Some(delimiter) = self.delimiter {
            format = format.with_delimiter(byte(delimiter)?);
        }
        if let Some(quote) = self.quote {
            format = format.with_quote(byte(quote)?);
        }
        if let Some(escape) = self.escape {
            format = format.with_escape(Some(byte(escape)?));
        }
        if let Some(comment) = self.comment {
            format = format.with_comment(Some(byte(comment)?));
        }
        Ok(match self.truncated_rows {
            Some(truncated_rows) => format.with_truncated_rows(truncated_rows),
            None => format,
        })
    }

    /// Fails where a file has other columns than the table, or in another order.
    async fn check_headers(&self, files: &Files, options: &CsvOptions) -> Result<()> {
        if !self.has_headers(files) {
            return Ok(());
        }
        let is_checked_now = |file: &&ObjectMeta| file.size > 0 && (files.pinned.is_none() || !is_small(file));
        let now: Vec<_> = files.files.iter().map(|file| &file.object_meta).filter(is_checked_now).cloned().collect();
        let headers = stream::iter(now).map(|meta| async move {
            let path = full_path(&files.url, &meta.location);
            check_header(files.store.as_ref(), &meta, &path, &files.columns, options).await
        });
        headers.buffered(CONCURRENT_HEADS).try_collect().await
    }

    /// Whether files say the names of their columns, and these can be compared.
    fn has_headers(&self, files: &Files) -> bool {
        let is_told = !files.is_declared && self.has_header.unwrap_or(true);
        is_told && !files.compression.is_compressed() && files.files.len() > 1
    }
}

/// The byte that a character is.
fn byte(sign: char) -> Result<u8> {
    u8::try_from(sign)
        .ok()
        .filter(u8::is_ascii)
        .ok_or_else(|| plan_datafusion_err!("a sign of CSV must be {}, got '{sign}'", char::WHAT))
}
