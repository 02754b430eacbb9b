//! Text: one row per line.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringBuilder};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;

use super::format::{Files, Layout, ReadFormat, ReadOptions, Scan};
use super::text::{Contents, byte_ranges, bytes_of, line_bytes, lines_before, opened_by, projected};
use super::tolerant::{BadLines, DecodeLines, LineDecoder, Tolerant};
use crate::call::Argument;
use crate::functions::{Failures, MaxErrors, OnError};
use crate::physical::ValueRanges;
use crate::sources::files::{Listing, read_options};
use futures::FutureExt;
use futures::future::BoxFuture;

/// A batch has no more text than this, but for a line that is longer.
const BATCH_BYTES: usize = 1 << 20;

read_options! {
    /// How text files are read: one row per line, without the end of the line. Start from the default and set what
    /// differs.
    pub struct ReadTextOptions: "read_text", "The lines of text files, as a column `text`." {
        /// Whether lines without a character are rows, too.
        pub keep_empty_lines: bool = default,
        /// `utf-8`, in which other bytes are an error, or `latin-1`, in which every byte is a character.
        pub encoding: TextEncoding = default,
        /// What becomes of lines that are not of the encoding: `fail`, `skip` or `divert`.
        pub on_error: OnError,
        /// How many such lines there may be, like `100` or `0.5%`; any number if not said.
        pub max_errors: Option<MaxErrors>,
    }
}

/// What the bytes of a text mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextEncoding {
    /// UTF-8. Other bytes are an error.
    #[default]
    Utf8,
    /// ISO 8859-1, in which every byte is a character.
    Latin1,
}

impl Argument for TextEncoding {
    const WHAT: &'static str = "'utf-8' or 'latin-1'";

    fn from_value(value: &crate::call::Value) -> Result<Option<Self>> {
        Ok(value.plain().and_then(|text| match text.to_lowercase().replace(['-', '_'], "").as_str() {
            "utf8" => Some(Self::Utf8),
            "latin1" | "iso88591" => Some(Self::Latin1),
            _ => None,
        }))
    }

    fn to_value(&self) -> Result<crate::call::Value> {
        let name = match self {
            Self::Utf8 => "utf-8",
            Self::Latin1 => "latin-1",
        };
        Ok(crate::call::Value::Text(name.to_owned()))
    }
}

#[async_trait]
impl ReadFormat for ReadTextOptions {
    fn read_name(&self) -> &'static str {
        "ReadText"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["txt", "text", "log"]
    }

    fn tolerates(&self) -> bool {
        self.on_error != OnError::Fail
    }

    fn options(&self) -> ReadOptions {
        self.read_options()
    }

    fn check(&self) -> Result<()> {
        if self.on_error == OnError::Null {
            return plan_err!("a line of text is one value: on_error is 'fail', 'skip' or 'divert'");
        }
        self.failures().check()
    }

    async fn columns(&self, _session: &dyn Session, _listing: &Listing, _telling: &ObjectMeta) -> Result<Schema> {
        Ok(Schema::new(vec![Field::new("text", DataType::Utf8, false)]))
    }

    /// There is one column, always.
    fn check_same_columns(&self, _told: &Schema, _found: &Schema) -> Result<()> {
        Ok(())
    }

    fn lay_out<'a>(
        &'a self,
        session: &'a dyn Session,
        files: &'a Files,
        scan: &'a Scan<'a>,
    ) -> BoxFuture<'a, Result<Layout>> {
        async move {
            let (keeps_empty, encoding) = (self.keep_empty_lines, self.encoding);
            let finish = match BadLines::of(self.failures(), session).map(Arc::new) {
                None => opened_by("text", move |opening| {
                    projected(opening, |contents| Lines { contents, keeps_empty, encoding })
                }),
                Some(bad) => opened_by("text", move |opening| {
                    let (decode, bad) = (Arc::new(TextLines { keeps_empty, encoding }), Arc::clone(&bad));
                    projected(opening, |contents| Tolerant { contents, decode, has_header: false, bad })
                }),
            };
            let format = JsonFormat::default().with_file_compression_type(files.compression);
            Ok(Layout {
                units: byte_ranges(session, files, scan, true, self.override_num_blocks),
                rows: Precision::Absent,
                bytes: Precision::Absent,
                row_bytes: line_bytes(files).await?,
                ranges: ValueRanges::default(),
                format: Arc::new(format) as Arc<dyn FileFormat>,
                opened: None,
                row_groups: (0, 0),
                left_out: Vec::new(),
                finish,
            })
        }
        .boxed()
    }
}

impl ReadTextOptions {
    fn failures(&self) -> Failures {
        Failures { on_error: self.on_error.clone(), max_errors: self.max_errors }
    }
}

/// Decodes lines of text.
#[derive(Clone, Copy)]
struct TextLines {
    keeps_empty: bool,
    encoding: TextEncoding,
}

/// The same, so many at once.
struct TextDecoder {
    lines: TextLines,
    columns: SchemaRef,
    most: usize,
}

impl LineDecoder for TextDecoder {
    fn decode(&mut self, text: &[u8]) -> Result<(RecordBatch, usize)> {
        let (mut texts, mut bytes) = (StringBuilder::new(), 0);
        for whole in text.split_inclusive(|byte| *byte == b'\n').take(self.most) {
            bytes += whole.len();
            let line = whole.strip_suffix(b"\n").unwrap_or(whole);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match self.lines.encoding {
                _ if !self.lines.is_row(line) => {}
                TextEncoding::Latin1 => texts.append_value(latin_text(line)),
                TextEncoding::Utf8 => match simdutf8::compat::from_utf8(line) {
                    Ok(text) => texts.append_value(text),
                    Err(e) => return exec_err!("byte {} of the line is not UTF-8", e.valid_up_to() + 1),
                },
            }
        }
        Ok((RecordBatch::try_new(Arc::clone(&self.columns), vec![Arc::new(texts.finish())])?, bytes))
    }
}

impl DecodeLines for TextLines {
    fn decoder(&self, columns: &SchemaRef, most: usize) -> Result<Box<dyn LineDecoder>> {
        Ok(Box::new(TextDecoder { lines: *self, columns: Arc::clone(columns), most }))
    }

    fn is_row(&self, line: &[u8]) -> bool {
        self.keeps_empty || !line.is_empty()
    }
}

fn latin_text(line: &[u8]) -> String {
    line.iter().map(|byte| char::from(*byte)).collect()
}

/// Opens files, each as a stream of its lines.
#[derive(Clone)]
struct Lines {
    contents: Contents,
    keeps_empty: bool,
    encoding: TextEncoding,
}

impl FileOpener for Lines {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let lines = self.clone();
        Ok(Box::pin(async move {
            let bytes = bytes_of(&lines.contents, &file).await?;
            let rows = Rows { lines, file, bytes, rest: Vec::new(), chunk: Bytes::new(), line: 0, ended: false };
            Ok(stream::try_unfold(rows, Rows::next).boxed())
        }))
    }
}

/// The lines of one file that are read.
struct Rows {
    lines: Lines,
    file: PartitionedFile,
    bytes: BoxStream<'static, Result<Bytes>>,
    chunk: Bytes,
    /// A line whose end has not come.
    rest: Vec<u8>,
    /// How many have been read.
    line: usize,
    ended: bool,
}

impl Rows {
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        let (mut texts, mut rows) = (StringBuilder::new(), 0);
        let is_wanted = !self.lines.contents.schema.fields().is_empty();
        while rows < self.lines.contents.batch_size && texts.values_slice().len() < BATCH_BYTES {
            let Some(line) = self.line().await? else { break };
            self.line += 1;
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() && !self.lines.keeps_empty {
                continue;
            }
            rows += 1;
            if is_wanted {
                match self.lines.encoding {
                    TextEncoding::Latin1 => texts.append_value(latin_text(line)),
                    TextEncoding::Utf8 => match simdutf8::compat::from_utf8(line) {
                        Ok(text) => texts.append_value(text),
                        Err(e) => return Err(self.not_utf8(e.valid_up_to()).await),
                    },
                }
            }
        }
        if rows == 0 {
            return Ok(None);
        }
        let columns = if is_wanted { vec![Arc::new(texts.finish()) as ArrayRef] } else { Vec::new() };
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.lines.contents.schema), columns, &options)?;
        Ok(Some((batch, self)))
    }

    /// The next line, without its end.
    async fn line(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.chunk.iter().position(|byte| *byte == b'\n') {
                let mut line = std::mem::take(&mut self.rest);
                line.extend_from_slice(&self.chunk[..end]);
                let _end = self.chunk.split_to(end + 1);
                return Ok(Some(line));
            }
            self.rest.extend_from_slice(&std::mem::take(&mut self.chunk));
            if self.ended {
                return Ok(None);
            }
            match self.bytes.try_next().await? {
                Some(chunk) => self.chunk = chunk,
                None => {
                    self.ended = true;
                    let last = std::mem::take(&mut self.rest);
                    return Ok(Some(last).filter(|last| !last.is_empty()));
                }
            }
        }
    }

    async fn not_utf8(&mut self, byte: usize) -> DataFusionError {
        // An error on the way to the line number is no better than the one that is to be told.
        let start = self.file.range.as_ref().map_or(0, |range| range.start.max(0) as u64);
        let before = lines_before(self.lines.contents.store.as_ref(), &self.file, (0, 0), start).await;
        let (before, _) = before.unwrap_or_default();
        exec_datafusion_err!(
            "byte {} of line {} of '{}{}' is not UTF-8; with encoding => 'latin-1' every byte is a character",
            byte + 1,
            before + self.line,
            self.lines.contents.root,
            self.file.object_meta.location
        )
    }
}
