//! Rows of CSV, all of which fit the columns. The first that does not is an error, with its file and line.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::csv::ReaderBuilder;
use datafusion::common::config::CsvOptions;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::datasource::file_format::csv::CsvDecoder;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion_datasource::decoder::{DecoderDeserializer, deserialize_stream};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use super::by_header::check_header;
use super::dialect::{decoder_of, typed};
use super::messages::{with_name, without_line};
use super::quotes::{Quotes, Stray};
use crate::error::one_message;
use crate::sources::files::is_small;
use crate::sources::formats::text::{ADVICE, Contents, lines_before, rows_bytes_of};

/// Opens CSV files.
#[derive(Clone)]
pub(super) struct CsvRows {
    pub(super) contents: Contents,
    pub(super) options: Arc<CsvOptions>,
    /// Whether nobody has looked at the headers of small files.
    pub(super) checks_headers: bool,
}

impl FileOpener for CsvRows {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let part = Part { rows: self.clone(), file };
        Ok(Box::pin(async move {
            let (contents, file) = (&part.rows.contents, &part.file);
            let (meta, options) = (&file.object_meta, &part.rows.options);
            if part.rows.checks_headers && is_small(meta) {
                let (store, columns) = (contents.store.as_ref(), &contents.file_schema);
                check_header(store, meta, &part.path(), columns, options).await?;
            }
            let end_of_row = options.terminator.unwrap_or(b'\n');
            let bytes = rows_bytes_of(contents, file, end_of_row).await?;
            let decoder = DecoderDeserializer::new(CsvDecoder::new(part.builder().build_decoder()));
            let rows = deserialize_stream(part.clone().checked(bytes).fuse(), decoder);
            let columns = Arc::clone(&contents.schema);
            let rows = rows.map(move |rows| typed(rows?, &columns));
            let rows = rows.or_else(move |e| {
                let part = part.clone();
                async move { Err(part.placed(e).await) }
            });
            Ok(rows.boxed())
        }))
    }
}

/// A part of a file that is read.
#[derive(Clone)]
struct Part {
    rows: CsvRows,
    file: PartitionedFile,
}

impl Part {
    /// How the rows are decoded.
    fn builder(&self) -> ReaderBuilder {
        let (contents, options) = (&self.rows.contents, &self.rows.options);
        let builder = decoder_of(options, &contents.file_schema, contents.batch_size);
        let has_header = options.has_header.unwrap_or(true) && self.start() == 0;
        builder.with_projection(contents.columns.clone()).with_header(has_header)
    }

    fn path(&self) -> String {
        format!("{}{}", self.rows.contents.root, self.file.object_meta.location)
    }

    /// Where the part begins.
    fn start(&self) -> u64 {
        self.file.range.as_ref().map_or(0, |range| range.start.max(0) as u64)
    }

    fn is_whole_file(&self) -> bool {
        let end = self.file.range.as_ref().map_or(self.file.object_meta.size, |range| range.end.max(0) as u64);
        self.start() == 0 && end >= self.file.object_meta.size
    }

    /// How many lines of the file are before the part.
    async fn lines_before(&self) -> usize {
        let store = self.rows.contents.store.as_ref();
        // An error on the way to the number of a line is no better than the one that is to be told.
        lines_before(store, &self.file, (0, 0), self.start()).await.unwrap_or_default().0
    }

    /// The bytes of the part, up to a value in quotes that does not end.
    fn checked(self, bytes: BoxStream<'static, Result<Bytes>>) -> BoxStream<'static, Result<Bytes>> {
        let quotes = Quotes::new(&self.rows.options);
        let next = |(part, mut quotes, mut bytes): (Self, Quotes, BoxStream<'static, Result<Bytes>>)| async move {
            let end = || quotes.may_end_in_comment().then(|| Bytes::from_static(b"\n"));
            let chunk = bytes.try_next().await?.or_else(end);
            let checked = match &chunk {
                Some(chunk) => quotes.follow(chunk),
                None => quotes.end(),
            };
            match checked {
                Ok(()) => Ok(chunk.map(|chunk| (chunk, (part, quotes, bytes)))),
                Err(stray) => Err(part.explained(&stray).await),
            }
        };
        stream::try_unfold((self, quotes, bytes.fuse().boxed()), next).boxed()
    }

    /// An error of a value in quotes, for people.
    async fn explained(&self, Stray { line, end }: &Stray) -> DataFusionError {
        let before = self.lines_before().await;
        let what = match end {
            Some((line, next)) => {
                let (line, next) = (before + line + 1, char::from(*next).escape_debug());
                format!("seems to end in line {line}, where '{next}' follows: most likely its own end is missing")
            }
            None if self.is_whole_file() => "does not end".to_owned(),
            None => "does not end in the part of the file that one task reads; newlines_in_values => true reads files \
                     in one piece"
                .to_owned(),
        };
        let (line, path) = (before + line + 1, self.path());
        exec_datafusion_err!(
            "a value in quotes begins in line {line} of '{path}' and {what}; on_error => 'skip' leaves out lines whose \
             quotes do not end"
        )
    }

    /// An error of the decoder, with the place in the file and what to do.
    async fn placed(&self, error: DataFusionError) -> DataFusionError {
        if !matches!(error.find_root(), DataFusionError::ArrowError(..)) {
            return error;
        }
        let (before, path) = (self.lines_before().await, self.path());
        let message = one_message(&error);
        let (message, place) = match without_line(&message) {
            // The decoder counts lines from 0 on.
            Some((message, line)) => (message, format!("line {} of '{path}'", before + line + 1)),
            None if before > 0 => (message, format!("the part of '{path}' behind line {before}")),
            None => (message, format!("'{path}'")),
        };
        let message = with_name(&message, &self.rows.contents.file_schema).unwrap_or(message);
        exec_datafusion_err!("{message}\n  while reading {place}; {ADVICE}")
    }
}
