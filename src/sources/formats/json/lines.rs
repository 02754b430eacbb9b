//! Reads lines of JSON, each an object, strictly.
//!
//! The decoder of Arrow cuts `1.5` to `1` for a column of integers, and can leave out a key that is none of the
//! columns. Here integers are decoded as the text that they are, and then parsed; and who reads all columns gets an
//! error for a key that none of them is.

use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, ListArray, RecordBatch, RecordBatchOptions, StringArray, StructArray, new_null_array,
};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::arrow::json::ReaderBuilder;
use datafusion::arrow::json::reader::Decoder;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion_datasource::boundary_stream::AlignedBoundaryStream;
use datafusion_datasource_json::utils::JsonArrayToNdjsonReader;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetResultPayload, ObjectStoreExt};
use parking_lot::Mutex;

use super::super::decimals::{decoded_decimal, rounded};
use super::super::text::{ADVICE, Contents, decompressed};
use super::super::tolerant::{DecodeLines, LineDecoder};
use crate::error::{ErrorContext, one_message};

/// Bytes that are read from a compressed file at once.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Whole numbers up to here are exact as floating-point numbers.
const EXACT: f64 = 9_007_199_254_740_992.0;

type Text = BoxStream<'static, Result<Bytes>>;

/// Opens files, each as a stream of rows.
#[derive(Clone)]
pub(super) struct JsonLines {
    pub(super) contents: Contents,
    /// Whether a key that is no column is an error.
    pub(super) is_strict: bool,
    /// Whether the file is one array of objects. It is then read as the lines that it would be.
    pub(super) is_array: bool,
}

impl FileOpener for JsonLines {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let lines = self.clone();
        Ok(Box::pin(async move {
            let text = lines.text(&file).await?;
            let decoder = lines.decoder(lines.contents.batch_size)?;
            let rows = Rows { lines, file, text, chunk: Bytes::new(), decoder };
            Ok(stream::try_unfold(rows, Rows::next).boxed())
        }))
    }
}

/// A decoder that gives integers as text, and decimals with another digit.
fn decoder(columns: &SchemaRef, batch_size: usize, is_strict: bool) -> Result<Decoder> {
    let fields: Fields = columns.fields().iter().map(as_decoded).collect();
    let builder = ReaderBuilder::new(Arc::new(Schema::new(fields))).with_batch_size(batch_size);
    Ok(builder.with_coerce_primitive(true).with_strict_mode(is_strict).build_decoder()?)
}

/// The decoded rows with their types.
fn typed_rows(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let typed = |(column, field): (&ArrayRef, &FieldRef)| typed(column, field.data_type(), field.name());
    let columns = batch.columns().iter().zip(schema.fields()).map(typed).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// Decodes lines, each of which is an object.
pub(super) struct ObjectLines;

impl DecodeLines for ObjectLines {
    fn is_suspect(&self, line: &[u8], _columns: &Schema) -> bool {
        serde_json::from_slice::<serde::de::IgnoredAny>(line).is_err()
    }

    fn decoder(&self, columns: &SchemaRef, most: usize) -> Result<Box<dyn LineDecoder>> {
        Ok(Box::new(ObjectDecoder { decoder: decoder(columns, most, true)?, columns: Arc::clone(columns) }))
    }

    /// Each column is decoded by itself.
    fn with_nulls(&self, line: &[u8], columns: &SchemaRef) -> Result<RecordBatch> {
        let value = |field: &FieldRef| {
            let column = Arc::new(Schema::new(vec![Arc::clone(field)]));
            let decoder = decoder(&column, 1, false)?;
            let (row, read) = ObjectDecoder { decoder, columns: column }.decode(line)?;
            match row.num_rows() {
                1 if read == line.len() => Ok(Arc::clone(row.column(0))),
                _ => exec_err!("a line that is not one object"),
            }
        };
        let value = |field: &FieldRef| value(field).unwrap_or_else(|_| new_null_array(field.data_type(), 1));
        let row = columns.fields().iter().map(value).collect();
        Ok(RecordBatch::try_new(Arc::clone(columns), row)?)
    }
}

/// The same, some at once.
struct ObjectDecoder {
    decoder: Decoder,
    columns: SchemaRef,
}

impl LineDecoder for ObjectDecoder {
    fn decode(&mut self, text: &[u8]) -> Result<(RecordBatch, usize)> {
        let mut read = self.decoder.decode(text)?;
        if self.decoder.has_partial_record() {
            return exec_err!("the line ends within an object");
        }
        // The end of the last line is behind its object.
        read += text[read..].iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r')).count();
        read += usize::from(text.get(read) == Some(&b'\n'));
        let rows = match self.decoder.flush()? {
            Some(batch) => typed_rows(&batch, &self.columns)?,
            None => RecordBatch::new_empty(Arc::clone(&self.columns)),
        };
        Ok((rows, read))
    }
}

impl JsonLines {
    /// The text of a file, or of the lines that begin in its range.
    async fn text(&self, file: &PartitionedFile) -> Result<Text> {
        let (path, size) = (&file.object_meta.location, file.object_meta.size);
        if !self.contents.compression.is_compressed() && !self.is_array {
            let (start, end) = file.range.as_ref().map_or((0, size), |r| (r.start.max(0) as u64, r.end.max(0) as u64));
            let text =
                AlignedBoundaryStream::new(Arc::clone(&self.contents.store), path.clone(), start, end, size, b'\n')
                    .await?;
            return Ok(text.map_err(DataFusionError::from).boxed());
        }
        match self.contents.store.get(path).await?.payload {
            GetResultPayload::File(file, _) => {
                let reader = self.contents.compression.convert_read(file)?;
                Ok(if self.is_array { chunks_of_array(reader) } else { chunks(reader, |_| Ok(())) })
            }
            GetResultPayload::Stream(text) => {
                let text = decompressed(self.contents.compression, text.map_err(DataFusionError::from).boxed())?;
                Ok(if self.is_array { lines_of_array(text) } else { text })
            }
        }
    }

    fn decoder(&self, batch_size: usize) -> Result<Decoder> {
        decoder(&self.contents.schema, batch_size, self.is_strict)
    }

    /// The error of a file with the line where it is, by decoding line by line what was decoded in batches.
    async fn place(&self, file: &PartitionedFile, error: DataFusionError) -> DataFusionError {
        // An error on the way to the line number is no better than the one that is to be told.
        let (error, line) = match self.first_error(file).await {
            Ok(Some((row, error))) if self.is_array => (error, format!("object {row} of ")),
            Ok(Some((line, error))) => (error, format!("line {line} of ")),
            Ok(None) | Err(_) => (error, String::new()),
        };
        let path = &file.object_meta.location;
        exec_datafusion_err!("{}\n  while reading {line}'{}{path}'; {ADVICE}", one_message(&error), self.contents.root)
    }

    async fn first_error(&self, file: &PartitionedFile) -> Result<Option<(usize, DataFusionError)>> {
        let start = file.range.as_ref().map_or(0, |range| range.start.max(0) as u64);
        let whole = PartitionedFile::new_from_meta(file.object_meta.clone());
        let mut text = self.text(&whole).await?;
        let mut decoder = self.decoder(1)?;
        let (mut offset, mut line, mut record, mut objects) = (0, 1, 1, 0);
        while let Some(chunk) = text.try_next().await? {
            for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                // Other tasks read the lines before.
                if offset >= start || decoder.has_partial_record() {
                    if !decoder.has_partial_record() {
                        record = line;
                    }
                    match self.decode_all(&mut decoder, part) {
                        Ok(rows) => objects += rows,
                        Err(error) => return Ok(Some((if self.is_array { objects + 1 } else { record }, error))),
                    }
                }
                offset += part.len() as u64;
                line += usize::from(part.ends_with(b"\n"));
            }
        }
        Ok(decoder.flush().err().map(|error| (record, error.into())))
    }

    /// Decodes all rows that end in a text. Returns how many.
    fn decode_all(&self, decoder: &mut Decoder, mut text: &[u8]) -> Result<usize> {
        let mut rows = 0;
        loop {
            let read = decoder.decode(text)?;
            text.advance(read);
            if !decoder.has_partial_record()
                && let Some(batch) = decoder.flush()?
            {
                rows += typed_rows(&batch, &self.contents.schema)?.num_rows();
            } else if text.is_empty() || read == 0 {
                return Ok(rows);
            }
        }
    }
}

/// What a reader gives, in pieces. `end` says whether it may end where it does.
fn chunks<R: Read + Send + 'static>(reader: R, end: fn(&R) -> io::Result<()>) -> Text {
    let next = move |mut reader: R| async move {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        if Read::take(&mut reader, CHUNK_BYTES as u64).read_to_end(&mut chunk)? == 0 {
            end(&reader)?;
            return Ok(None);
        }
        Ok(Some((Bytes::from(chunk), reader)))
    };
    stream::try_unfold(reader, next).boxed()
}

fn chunks_of_array<R: Read + Send + 'static>(reader: R) -> Text {
    chunks(JsonArrayToNdjsonReader::new(reader), JsonArrayToNdjsonReader::validate_complete)
}

/// The lines that an array would be, as far as it has come.
pub(super) fn lines_of_array(text: Text) -> Text {
    let come = Come::default();
    let lines = JsonArrayToNdjsonReader::new(come.clone());
    let next = |(mut text, come, mut lines): (Text, Come, JsonArrayToNdjsonReader<Come>)| async move {
        loop {
            let mut chunk = Vec::new();
            lines.read_to_end(&mut chunk)?;
            if !chunk.is_empty() {
                return Ok(Some((Bytes::from(chunk), (text, come, lines))));
            }
            match text.try_next().await? {
                Some(bytes) => *come.0.lock() = bytes,
                None => {
                    lines.validate_complete()?;
                    return Ok(None);
                }
            }
        }
    };
    stream::try_unfold((text, come, lines), next).boxed()
}

/// Bytes that have come. It ends with them, and goes on when there are others.
#[derive(Clone, Default)]
struct Come(Arc<Mutex<Bytes>>);

impl Read for Come {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut come = self.0.lock();
        let read = come.len().min(into.len());
        into[..read].copy_from_slice(&come[..read]);
        come.advance(read);
        Ok(read)
    }
}

/// One file that is read.
struct Rows {
    lines: JsonLines,
    file: PartitionedFile,
    text: Text,
    chunk: Bytes,
    decoder: Decoder,
}

impl Rows {
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        match self.decoded().await {
            Ok(batch) => Ok(batch.map(|batch| (batch, self))),
            Err(e) if matches!(e.find_root(), DataFusionError::ArrowError(..) | DataFusionError::Execution(_)) => {
                Err(self.lines.place(&self.file, e).await)
            }
            Err(e) => Err(e),
        }
    }

    async fn decoded(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.chunk.is_empty() {
                match self.text.try_next().await? {
                    Some(chunk) => self.chunk = chunk,
                    None => break,
                }
            }
            let read = self.decoder.decode(&self.chunk)?;
            self.chunk.advance(read);
            // What is left over is of rows beyond the batch.
            if !self.chunk.is_empty() {
                break;
            }
        }
        self.decoder.flush()?.map(|batch| typed_rows(&batch, &self.lines.contents.schema)).transpose()
    }
}

/// The field as it is decoded.
fn as_decoded(field: &FieldRef) -> FieldRef {
    let kind = match field.data_type() {
        kind if kind.is_integer() => DataType::Utf8,
        DataType::List(item) => DataType::List(as_decoded(item)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(as_decoded).collect()),
        kind => match decoded_decimal(kind) {
            Some(decimal) => decimal,
            None => return Arc::clone(field),
        },
    };
    Arc::new(Field::clone(field).with_data_type(kind))
}

/// A decoded column with integers in place of their text, and rounded decimals.
fn typed(column: &ArrayRef, kind: &DataType, name: &str) -> Result<ArrayRef> {
    match kind {
        kind if kind.is_integer() => integers(column.as_string(), kind, name),
        kind if decoded_decimal(kind).is_some() => {
            rounded(column, kind).while_doing(|| format!("reading column '{name}'"))
        }
        DataType::List(item) => {
            let list = column.as_list::<i32>();
            let values = typed(list.values(), item.data_type(), name)?;
            let nulls = list.nulls().cloned();
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), list.offsets().clone(), values, nulls)?))
        }
        DataType::Struct(fields) => {
            let columns = column.as_struct();
            let typed = |(column, field): (&ArrayRef, &FieldRef)| {
                typed(column, field.data_type(), &format!("{name}.{}", field.name()))
            };
            let arrays = columns.columns().iter().zip(fields).map(typed).collect::<Result<Vec<_>>>()?;
            let (length, nulls) = (columns.len(), columns.nulls().cloned());
            Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), arrays, nulls, length)?))
        }
        _ => Ok(Arc::clone(column)),
    }
}

fn integers(text: &StringArray, kind: &DataType, name: &str) -> Result<ArrayRef> {
    let strict = CastOptions { safe: true, ..CastOptions::default() };
    let parsed = cast_with_options(text, kind, &strict)?;
    if parsed.null_count() == text.null_count() {
        return Ok(parsed);
    }
    // Whole numbers may be written as `1.0` or `1e3`.
    let whole = |text: &str| {
        let number = text.parse::<f64>().ok().filter(|n| n.fract() == 0.0 && n.abs() < EXACT);
        number.map_or_else(|| text.to_owned(), |number| format!("{number:.0}"))
    };
    let rewritten: StringArray = text
        .iter()
        .zip((0..text.len()).map(|row| parsed.is_valid(row)))
        .map(|(text, is_parsed)| text.map(|text| if is_parsed { text.to_owned() } else { whole(text) }))
        .collect();
    let parsed = cast_with_options(&rewritten, kind, &strict)?;
    match (0..text.len()).find(|row| text.is_valid(*row) && parsed.is_null(*row)) {
        Some(row) => exec_err!("value '{}' of column '{name}' is no {kind}", text.value(row)),
        None => Ok(parsed),
    }
}
