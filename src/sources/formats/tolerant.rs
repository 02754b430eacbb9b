//! Text of which some lines do not fit the columns: these are left out, become nulls, or are kept with what is wrong
//! with them.
//!
//! Lines are decoded many at once. Where that fails, those that look wrong are decoded by themselves, and the others in
//! halves, until the lines are found that do not fit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray, UInt64Array, new_null_array};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion::physical_plan::metrics::{Count, MetricBuilder};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use memchr::{memchr, memchr_iter};
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::OnceCell;

use super::text::{Contents, bytes_of, lines_before};
use crate::block::{Block, TaskId};
use crate::error::one_message;
use crate::functions::{Failures, OnError};
use crate::store::{BlockHandle, BlockStore, NextUse, Owner};

/// Lines that are decoded at once have about so many bytes.
const LINES_BYTES: usize = 1 << 20;
/// Diverted lines after which they are put into the store.
const DIVERTED_LINES: usize = 1024;

/// How the lines of a format are decoded.
pub(super) trait DecodeLines: Send + Sync + 'static {
    /// The rows of whole lines, with all columns of the files.
    fn decode(&self, lines: &[u8], columns: &SchemaRef) -> Result<RecordBatch>;

    /// Whether a line is a row.
    fn is_row(&self, line: &[u8]) -> bool {
        !line.trim_ascii().is_empty()
    }

    /// Whether a line most likely does not fit, as far as that is seen at a glance.
    fn is_suspect(&self, _line: &[u8], _columns: &Schema) -> bool {
        false
    }

    /// The row of a line that does not fit, with nulls in place of what does not.
    fn with_nulls(&self, _line: &[u8], columns: &SchemaRef) -> Result<RecordBatch> {
        let nulls = columns.fields().iter().map(|field| new_null_array(field.data_type(), 1)).collect();
        Ok(RecordBatch::try_new(Arc::clone(columns), nulls)?)
    }

    /// What is wrong with a line, for people.
    fn explain(&self, error: &DataFusionError, _columns: &Schema) -> String {
        one_message(error)
    }
}

/// What becomes of the lines of a scan that do not fit.
#[derive(Debug)]
pub(super) struct BadLines {
    failures: Failures,
    store: Option<Arc<BlockStore>>,
    /// The number by which the store knows who diverts.
    query: OnceCell<u64>,
    bad: AtomicU64,
    seen: AtomicU64,
    /// How many lines are before some bytes of files.
    known: tokio::sync::Mutex<HashMap<Path, BTreeMap<u64, usize>>>,
}

impl BadLines {
    /// Those of a scan; `None` where they are an error.
    pub(super) fn of(failures: Failures, session: &dyn Session) -> Option<Self> {
        let store = session.config().get_extension::<BlockStore>();
        let (bad, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        let (query, known) = (OnceCell::new(), tokio::sync::Mutex::default());
        (failures.on_error != OnError::Fail).then(|| Self { failures, store, query, bad, seen, known })
    }

    fn schema() -> SchemaRef {
        let fields = [
            Field::new("_error", DataType::Utf8, false),
            Field::new("_file", DataType::Utf8, false),
            Field::new("_line", DataType::UInt64, false),
            Field::new("_byte", DataType::UInt64, false),
            Field::new("_raw", DataType::Utf8, false),
        ];
        Arc::new(Schema::new(fields.to_vec()))
    }

    /// Where lines are diverted to: the store, the name, and the number of the scan.
    async fn place(&self) -> Result<Option<(&Arc<BlockStore>, &str, u64)>> {
        let OnError::Divert(name) = &self.failures.on_error else { return Ok(None) };
        let Some(store) = &self.store else {
            return exec_err!("lines are diverted in a session without a block store");
        };
        let begin = || async {
            let query = store.next_query();
            store.diverted().begin(name, query, &Self::schema())?;
            Ok::<_, DataFusionError>(query)
        };
        Ok(Some((store, name, *self.query.get_or_try_init(begin).await?)))
    }

    /// Lines and bytes in front of the first line that begins at `start` or behind it. Each byte of a file is looked at
    /// once for all parts of it.
    async fn lines_before(&self, store: &dyn ObjectStore, file: &PartitionedFile, start: u64) -> Result<(usize, u64)> {
        let mut known = self.known.lock().await;
        let known = known.entry(file.object_meta.location.clone()).or_default();
        let from = known.range(..=start).next_back().map_or((0, 0), |(byte, lines)| (*lines, *byte));
        let (lines, byte) = lines_before(store, file, from, start).await?;
        known.insert(byte, lines);
        Ok((lines, byte))
    }

    /// Whether there are too many of them.
    fn are_too_many(&self, task_ends: bool) -> bool {
        let (bad, seen) = (self.bad.load(Relaxed), self.seen.load(Relaxed));
        self.failures.max_errors.is_some_and(|most| bad > 0 && most.is_exceeded(bad, seen, task_ends))
    }
}

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
        let part = Part {
            contents: self.contents.clone(),
            decode: Arc::clone(&self.decode),
            bad: Arc::clone(&self.bad),
            bad_lines,
            skips_header: self.has_header && file.range.as_ref().is_none_or(|range| range.start <= 0),
            bytes: stream::empty().boxed(),
            buffer: Vec::new(),
            ended: false,
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
    bytes: BoxStream<'static, Result<Bytes>>,
    /// What came and was not decoded.
    buffer: Vec<u8>,
    ended: bool,
    /// How many bytes and lines of the part are before the buffer.
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
            let lines = self.lines().await?;
            if lines.is_empty() {
                if self.bad.are_too_many(true) {
                    return Err(self.too_many(None).await);
                }
                self.put().await?;
                self.tell().await?;
                return Ok(None);
            }
            let starts = line_starts(&lines);
            let (mut rows, first) = (Vec::new(), std::mem::take(&mut self.skips_header));
            let begin = usize::from(first);
            let (bytes, number) = (self.byte, self.line);
            self.byte += lines.len() as u64;
            self.line += starts.len();
            self.bad.seen.fetch_add((starts.len() - begin) as u64, Relaxed);
            let mut bad = Vec::new();
            self.decode(&lines, &starts[begin..], false, &mut rows, &mut bad)?;
            for (start, error) in bad {
                let place = starts.partition_point(|known| *known < start);
                let raw = String::from_utf8_lossy(line_at(&lines, start)).into_owned();
                let found = BadLine { error, line: number + place, byte: bytes + start as u64, raw };
                self.note(found).await?;
            }
            if let Some(batch) = self.batch(&rows)? {
                return Ok(Some((batch, self)));
            }
        }
    }

    /// Some whole lines; none at the end.
    async fn lines(&mut self) -> Result<Vec<u8>> {
        loop {
            let whole = self.buffer.len() >= LINES_BYTES || self.ended;
            let end = match (whole, self.ended) {
                (true, _) => nth_line_end(&self.buffer, self.contents.batch_size),
                (false, _) => None,
            };
            match end {
                Some(end) => {
                    let rest = self.buffer.split_off(end);
                    return Ok(std::mem::replace(&mut self.buffer, rest));
                }
                None if self.ended => return Ok(std::mem::take(&mut self.buffer)),
                None => match self.bytes.try_next().await? {
                    Some(chunk) => self.buffer.extend_from_slice(&chunk),
                    None => self.ended = true,
                },
            }
        }
    }

    /// Decodes the lines that begin here, and says where those are that do not fit, and why.
    fn decode(
        &self,
        lines: &[u8],
        starts: &[usize],
        was_looked_at: bool,
        rows: &mut Vec<RecordBatch>,
        bad: &mut Vec<(usize, String)>,
    ) -> Result<()> {
        let Some(first) = starts.first().copied() else { return Ok(()) };
        let last = starts[starts.len() - 1];
        let text = &lines[first..last + line_length(&lines[last..])];
        let columns = &self.contents.file_schema;
        let expected = starts.iter().filter(|start| self.decode.is_row(line_at(lines, **start))).count();
        let error = match self.decode.decode(text, columns) {
            // Quotes can make one row of several lines.
            Ok(batch) if batch.num_rows() == expected => {
                rows.push(batch);
                return Ok(());
            }
            Ok(batch) => exec_datafusion_err!("{} rows in {expected} lines", batch.num_rows()),
            Err(e) => e,
        };
        if starts.len() > 1 && !was_looked_at {
            // Bad lines, and the runs of good ones between them.
            let is_suspect = |start: &usize| self.decode.is_suspect(line_at(lines, *start), columns);
            let mut runs = starts.chunk_by(|line, next| !is_suspect(line) && !is_suspect(next));
            return runs.try_for_each(|run| self.decode(lines, run, true, rows, bad));
        }
        if starts.len() > 1 {
            let (one, two) = starts.split_at(starts.len() / 2);
            self.decode(lines, one, true, rows, bad)?;
            return self.decode(lines, two, true, rows, bad);
        }
        bad.push((first, self.decode.explain(&error, columns)));
        if self.bad.failures.on_error == OnError::Null {
            rows.push(self.decode.with_nulls(text, columns)?);
        }
        Ok(())
    }

    /// The columns that are wanted of all these rows.
    fn batch(&self, rows: &[RecordBatch]) -> Result<Option<RecordBatch>> {
        let all = concat_batches(&self.contents.file_schema, rows)?;
        if all.num_rows() == 0 {
            return Ok(None);
        }
        let columns = self.contents.columns.iter().map(|place| Arc::clone(all.column(*place))).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(all.num_rows()));
        Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.contents.schema), columns, &options)?))
    }

    /// Counts a line that does not fit, and keeps it where it is diverted.
    async fn note(&mut self, line: BadLine) -> Result<()> {
        self.bad_lines.add(1);
        self.bad.bad.fetch_add(1, Relaxed);
        if self.bad.are_too_many(false) {
            return Err(self.too_many(Some(line)).await);
        }
        if matches!(self.bad.failures.on_error, OnError::Divert(_)) {
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
        let (bad, seen) = (self.bad.bad.load(Relaxed), self.bad.seen.load(Relaxed));
        let most = self.bad.failures.max_errors.map_or_else(String::new, |most| most.to_string());
        let last = match last {
            Some(BadLine { error, line, .. }) => {
                // An error on the way to the number of a line is no better than the one that is to be told.
                let (before, _) = self.before().await.unwrap_or_default();
                format!("\n  the last one: {error}\n  in line {} of '{}'", before + line + 1, self.path())
            }
            None => String::new(),
        };
        exec_datafusion_err!("{bad} of {seen} lines do not fit the columns, and max_errors is {most}{last}")
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

/// Where lines begin.
fn line_starts(lines: &[u8]) -> Vec<usize> {
    let ends = memchr_iter(b'\n', lines).map(|place| place + 1);
    std::iter::once(0).chain(ends).filter(|start| *start < lines.len()).collect()
}

/// The end of the line number `most`, or of the last whole one.
fn nth_line_end(buffer: &[u8], most: usize) -> Option<usize> {
    memchr_iter(b'\n', buffer).map(|place| place + 1).take(most.max(1)).last()
}

/// Bytes of the line at the beginning of a text, with its end.
fn line_length(text: &[u8]) -> usize {
    memchr(b'\n', text).map_or(text.len(), |end| end + 1)
}

/// The line that begins at `start`, without its end.
fn line_at(lines: &[u8], start: usize) -> &[u8] {
    let line = &lines[start..start + line_length(&lines[start..])];
    line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_with_and_without_their_ends() {
        let text = b"a\r\n\nbc\nd";
        assert_eq!(line_starts(text), [0, 3, 4, 7]);
        let lines: Vec<&[u8]> = line_starts(text).iter().map(|start| line_at(text, *start)).collect();
        assert_eq!(lines, [&b"a"[..], b"", b"bc", b"d"]);
        assert_eq!((nth_line_end(text, 2), nth_line_end(text, 9), nth_line_end(b"d", 9)), (Some(4), Some(7), None));
        assert!(line_starts(b"").is_empty());
    }
}
