//! Text of which some lines do not fit the columns: these are left out, become nulls, or are kept with what is wrong
//! with them.
//!
//! Lines are decoded many at once. Where that fails, those that look wrong are decoded by themselves, and the others in
//! halves, until the lines are found that do not fit.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray, UInt64Array};
use datafusion::arrow::compute::concat_batches;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use memchr::{memchr_iter, memrchr};
use tokio::sync::OnceCell;

pub(super) use self::bad_lines::BadLines;
pub(super) use self::decode::{DecodeLines, LineDecoder, all_null};
use self::line_ends::{line_length, lines_of, number_of_lines, without_end};
use super::text::{Contents, bytes_of};
use crate::block::{Block, TaskId};
use crate::error::ErrorContext;
use crate::store::{BlockHandle, NextUse, Owner};

mod bad_lines;
mod decode;
mod line_ends;

/// About so many bytes of lines are read before they are decoded.
const LINES_BYTES: usize = 1 << 20;
/// Bytes that a row of several lines may have. Of a larger one, each line is taken for a row.
const MAX_ROW_BYTES: usize = 8 << 20;
/// What some programs write before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Diverted lines after which they are put into the store.
const DIVERTED_LINES: usize = 1024;

/// Opens files, each as the rows of those of its lines that fit.
pub(super) struct Tolerant<D> {
    pub(super) contents: Contents,
    pub(super) decode: Arc<D>,
    /// Whether the first line of a file has the names of the columns.
    pub(super) has_header: bool,
    pub(super) bad: Arc<BadLines>,
}

impl<D: DecodeLines> FileOpener for Tolerant<D> {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let bad_lines = MetricBuilder::new(&self.contents.metrics).counter("bad_lines", self.contents.partition);
        let begins_file = file.range.as_ref().is_none_or(|range| range.start <= 0);
        let part = Part {
            contents: self.contents.clone(),
            decode: Arc::clone(&self.decode),
            bad: Arc::clone(&self.bad),
            bad_lines,
            skips_header: self.has_header && begins_file,
            begins_file,
            bytes: stream::empty().boxed(),
            buffer: Vec::new(),
            at: 0,
            whole: 0,
            enough: LINES_BYTES,
            ended: false,
            decoder: None,
            byte: 0,
            line: 0,
            before: OnceCell::new(),
            diverted: Vec::new(),
            handles: Vec::new(),
            file,
        };
        Ok(Box::pin(async move {
            let bytes = bytes_of(&part.contents, &part.file).await?;
            let part = Part { bytes, ..part };
            part.bad.place().await?;
            Ok(stream::try_unfold(part, Part::next).boxed())
        }))
    }
}

/// A part of a file that is read.
struct Part<D> {
    contents: Contents,
    decode: Arc<D>,
    bad: Arc<BadLines>,
    bad_lines: Count,
    file: PartitionedFile,
    skips_header: bool,
    begins_file: bool,
    bytes: BoxStream<'static, Result<Bytes>>,
    /// What came, of which the bytes before `at` are decoded, and whole lines end at `whole`.
    buffer: Vec<u8>,
    at: usize,
    whole: usize,
    /// About so many bytes are in the buffer before they are decoded: more where a row has more.
    enough: usize,
    ended: bool,
    decoder: Option<Box<dyn LineDecoder>>,
    /// How many bytes and lines of the part are decoded.
    byte: u64,
    line: usize,
    /// How many lines and bytes of the file are before the part.
    before: OnceCell<(usize, u64)>,
    diverted: Vec<BadLine>,
    handles: Vec<BlockHandle>,
}

/// A line that does not fit.
struct BadLine {
    error: String,
    line: usize,
    byte: u64,
    raw: String,
}

impl<D: DecodeLines> Part<D> {
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        loop {
            if !self.fill().await? {
                if self.bad.are_too_many(true) {
                    return Err(self.too_many(None).await);
                }
                self.put().await?;
                self.tell().await?;
                return Ok(None);
            }
            if self.byte == 0 && self.begins_file && self.buffer[..self.whole].starts_with(BYTE_ORDER_MARK) {
                self.pass(BYTE_ORDER_MARK.len(), 0);
            }
            if std::mem::take(&mut self.skips_header) {
                let text = &self.buffer[self.at..self.whole];
                let header = &text[..self.decode.row_length(text).unwrap_or_else(|| line_length(text))];
                self.decode.check_header(header).while_doing(|| format!("reading '{}'", self.path()))?;
                self.pass(header.len(), lines_of(header));
                continue;
            }
            let rows = match self.rows_at_once() {
                Some(rows) => rows,
                None => self.rows_by_lines().await?,
            };
            if rows.num_rows() > 0 {
                return Ok(Some((self.wanted(&rows)?, self)));
            }
        }
    }

    /// Reads whole lines into the buffer. Returns whether there are any.
    async fn fill(&mut self) -> Result<bool> {
        if self.whole - self.at >= self.enough / 2 || self.ended {
            return Ok(self.whole > self.at);
        }
        self.buffer.drain(..self.at);
        self.whole -= self.at;
        self.at = 0;
        while !self.ended && (self.buffer.len() < self.enough || self.whole == 0) {
            let known = self.buffer.len();
            match self.bytes.try_next().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => self.ended = true,
            }
            self.whole = match memrchr(b'\n', &self.buffer[known..]) {
                _ if self.ended => self.buffer.len(),
                Some(end) => known + end + 1,
                None => memrchr(b'\n', &self.buffer[..known]).map_or(0, |end| end + 1),
            };
        }
        Ok(self.whole > 0)
    }

    /// Goes on behind bytes and lines.
    fn pass(&mut self, bytes: usize, lines: usize) {
        self.enough = LINES_BYTES;
        self.at += bytes;
        self.byte += bytes as u64;
        self.line += lines;
    }

    /// The rows of the next lines, if all of them fit.
    fn rows_at_once(&mut self) -> Option<RecordBatch> {
        // What is wrong, and where, is found out line by line.
        let (rows, bytes) = self.decoded(self.at..self.whole).ok()?;
        let text = &self.buffer[self.at..self.at + bytes];
        let is_whole = text.ends_with(b"\n") || self.at + bytes == self.buffer.len();
        let lines = number_of_lines(text).filter(|_| is_whole)?;
        // Else a row is of several lines, or there are lines that are no rows.
        if lines != rows.num_rows() {
            return None;
        }
        self.bad.seen(lines);
        self.pass(bytes, lines);
        Some(rows)
    }

    /// The rows of those of the next lines that fit.
    async fn rows_by_lines(&mut self) -> Result<RecordBatch> {
        let rows = self.next_rows().await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(RecordBatch::new_empty(Arc::clone(&self.contents.file_schema)));
        };
        let (begin, end, byte, line) = (first.start, last.end, self.byte, self.line);
        let (mut decoded, mut bad) = (Vec::new(), Vec::new());
        self.decode_rows(&rows, false, &mut decoded, &mut bad)?;
        self.bad.seen(rows.len());
        for (row, error) in bad {
            let before = &self.buffer[begin..row.start];
            let (line, byte) = (line + memchr_iter(b'\n', before).count(), byte + before.len() as u64);
            let raw = String::from_utf8_lossy(without_end(&self.buffer[row])).into_owned();
            self.note(BadLine { error, line, byte, raw }).await?;
        }
        self.pass(end - begin, lines_of(&self.buffer[begin..end]));
        Ok(concat_batches(&self.contents.file_schema, &decoded)?)
    }

    /// Where the next rows are, as many as are decoded at once. None where the first has not come as a whole.
    async fn next_rows(&mut self) -> Result<Vec<Range<usize>>> {
        let (mut rows, mut at) = (Vec::new(), self.at);
        while at < self.whole && rows.len() < self.contents.batch_size.max(1) {
            let text = &self.buffer[at..self.whole];
            let length = match self.decode.row_length(text) {
                Some(length) => length,
                // It comes with the next bytes.
                None if !self.ended && self.buffer.len() - at < MAX_ROW_BYTES => {
                    if rows.is_empty() {
                        self.enough = 2 * (self.buffer.len() - at).max(LINES_BYTES) + 2;
                    }
                    break;
                }
                None => {
                    let line = line_length(text);
                    self.check_not_cut(at).await?;
                    line
                }
            };
            rows.push(at..at + length);
            at += length;
        }
        Ok(rows)
    }

    /// Fails if the row at a place in the buffer, which does not end in this part of the file, ends in the next one:
    /// there its lines would be taken for rows.
    async fn check_not_cut(&mut self, at: usize) -> Result<()> {
        let (size, range) = (self.file.object_meta.size, self.file.range.as_ref());
        let Some(end) = range.map(|range| range.end).filter(|end| self.ended && (*end as u64) < size) else {
            return Ok(());
        };
        let behind = PartitionedFile { range: Some(FileRange { start: end, end: size as i64 }), ..self.file.clone() };
        let (mut row, mut behind) = (self.buffer[at..].to_vec(), bytes_of(&self.contents, &behind).await?);
        let here = row.len();
        while let Some(chunk) = behind.try_next().await?.filter(|_| row.len() < MAX_ROW_BYTES) {
            row.extend_from_slice(&chunk);
            match self.decode.row_length(&row) {
                Some(length) if length > here => return Err(self.is_cut(at).await),
                Some(_) => break,
                None => {}
            }
        }
        Ok(())
    }

    /// What a row is told that ends in the next part of the file.
    async fn is_cut(&mut self, at: usize) -> DataFusionError {
        let line = self.line + memchr_iter(b'\n', &self.buffer[self.at..at]).count();
        // An error on the way to the number of a line is no better than the one that is to be told.
        let (before, _) = self.before().await.unwrap_or_default();
        exec_datafusion_err!(
            "the row in line {} of '{}' goes on in the part of the file that the next task reads; \
             newlines_in_values => true reads files in one piece",
            before + line + 1,
            self.path()
        )
    }

    /// Decodes rows, and says where those are that do not fit, and why.
    fn decode_rows(
        &mut self,
        rows: &[Range<usize>],
        was_looked_at: bool,
        decoded: &mut Vec<RecordBatch>,
        bad: &mut Vec<(Range<usize>, String)>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let text = first.start..last.end;
        let columns = Arc::clone(&self.contents.file_schema);
        let decode = Arc::clone(&self.decode);
        let misfit = match rows {
            [row] => decode.misfit(without_end(&self.buffer[row.clone()]), &columns),
            _ => None,
        };
        let misfit = match misfit {
            Some(misfit) => misfit,
            None => {
                let is_row = |row: &&Range<usize>| decode.is_row(without_end(&self.buffer[(*row).clone()]));
                let expected = rows.iter().filter(is_row).count();
                let has_other_ends = number_of_lines(&self.buffer[text.clone()]).is_none();
                let error = match self.decoded(text.clone()) {
                    Ok(_) if has_other_ends && rows.len() > 1 => exec_datafusion_err!("a line has several ends"),
                    // Quotes can make one row of several lines.
                    Ok((batch, bytes)) if batch.num_rows() == expected && bytes == text.len() => {
                        decoded.push(batch);
                        return Ok(());
                    }
                    Ok((batch, _)) => exec_datafusion_err!("{} rows in {expected} lines", batch.num_rows()),
                    Err(e) => e,
                };
                decode.explain(&error, &columns)
            }
        };
        if rows.len() > 1 && !was_looked_at {
            // Bad lines, and the runs of good ones between them.
            let is_suspect =
                |row: &Range<usize>| (row.clone(), decode.is_suspect(without_end(&self.buffer[row.clone()]), &columns));
            let looked_at: Vec<(Range<usize>, bool)> = rows.iter().map(is_suspect).collect();
            let runs = looked_at.chunk_by(|row, next| !row.1 && !next.1);
            let mut before = 0;
            return runs.map(<[_]>::len).try_for_each(|length| {
                let run = &rows[before..before + length];
                before += length;
                self.decode_rows(run, true, decoded, bad)
            });
        }
        if rows.len() > 1 {
            let (one, two) = rows.split_at(rows.len() / 2);
            self.decode_rows(one, true, decoded, bad)?;
            return self.decode_rows(two, true, decoded, bad);
        }
        bad.push((first.clone(), misfit));
        if self.bad.makes_nulls() {
            decoded.push(decode.with_nulls(without_end(&self.buffer[first.clone()]), &columns)?);
        }
        Ok(())
    }

    /// The rows of whole lines from the beginning of some, and how many bytes these are.
    fn decoded(&mut self, text: Range<usize>) -> Result<(RecordBatch, usize)> {
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => self.decode.decoder(&self.contents.file_schema, self.contents.batch_size)?,
        };
        let text = &self.buffer[text];
        let decoded = decoder.decode(text);
        let goes_on = match &decoded {
            // Not in the middle of a row, and not behind what it was told is the end.
            Ok((rows, bytes)) => {
                let text = &text[..*bytes];
                text.ends_with(b"\n") && number_of_lines(text) == Some(rows.num_rows())
            }
            Err(e) => decoder.survives(e, text),
        };
        self.decoder = Some(decoder).filter(|_| goes_on);
        decoded
    }

    /// The columns that are wanted of rows.
    fn wanted(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.contents.columns.iter().map(|place| Arc::clone(rows.column(*place))).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.contents.schema), columns, &options)?)
    }

    /// Counts a line that does not fit, and keeps it where it is diverted.
    async fn note(&mut self, line: BadLine) -> Result<()> {
        self.bad_lines.add(1);
        self.bad.found();
        if self.bad.are_too_many(false) {
            return Err(self.too_many(Some(line)).await);
        }
        if self.bad.diverts() {
            self.diverted.push(line);
            if self.diverted.len() >= DIVERTED_LINES {
                self.put().await?;
            }
        }
        Ok(())
    }

    /// The path of the file.
    fn path(&self) -> String {
        format!("{}{}", self.contents.root, self.file.object_meta.location)
    }

    /// How many lines and bytes of the file are before the part.
    async fn before(&mut self) -> Result<(usize, u64)> {
        let (store, file, bad) = (self.contents.store.as_ref(), &self.file, &self.bad);
        let count = || async {
            let start = file.range.as_ref().map_or(0, |range| range.start.max(0) as u64);
            bad.lines_before(store, file, start).await
        };
        self.before.get_or_try_init(count).await.copied()
    }

    async fn too_many(&mut self, last: Option<BadLine>) -> DataFusionError {
        let last = match last {
            Some(BadLine { error, line, .. }) => {
                // An error on the way to the number of a line is no better than the one that is to be told.
                let (before, _) = self.before().await.unwrap_or_default();
                format!("\n  the last one: {error}\n  in line {} of '{}'", before + line + 1, self.path())
            }
            None => String::new(),
        };
        exec_datafusion_err!("{}{last}", self.bad.too_many())
    }

    /// Puts diverted lines into the store. Nobody sees them before the part ends: it may be read again.
    async fn put(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.diverted);
        if lines.is_empty() {
            return Ok(());
        }
        let (before, first) = self.before().await?;
        let Some((store, name, query)) = self.bad.place().await? else { return Ok(()) };
        let texts =
            |of: fn(&BadLine) -> &str| Arc::new(StringArray::from_iter_values(lines.iter().map(of))) as ArrayRef;
        let path = self.path();
        let files: ArrayRef = Arc::new(StringArray::from_iter_values(lines.iter().map(|_| path.as_str())));
        let numbers = lines.iter().map(|line| (before + line.line + 1) as u64);
        let bytes = lines.iter().map(|line| first + line.byte);
        let columns = vec![
            texts(|line| &line.error),
            files,
            Arc::new(UInt64Array::from_iter_values(numbers)),
            Arc::new(UInt64Array::from_iter_values(bytes)),
            texts(|line| &line.raw),
        ];
        let batch = RecordBatch::try_new(BadLines::schema(), columns)?;
        let owner = Arc::new(Owner::default());
        owner.describe(query, || format!("Diverted({name})"));
        let handle = store.put(Block::new(BadLines::schema(), vec![batch]), NextUse::Kept, &owner)?;
        self.handles.push(handle);
        Ok(())
    }

    /// Shows what the part has diverted.
    async fn tell(&mut self) -> Result<()> {
        if let Some((store, name, query)) = self.bad.place().await? {
            let task = TaskId::root(self.contents.partition);
            for handle in self.handles.drain(..) {
                store.diverted().add(name, query, &task, handle);
            }
        }
        Ok(())
    }
}
