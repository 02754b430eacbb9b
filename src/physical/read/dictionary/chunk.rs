//! A column chunk of codes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, UInt32Array};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::compute::{filter, take};
use datafusion::arrow::error::ArrowError;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::basic::{Encoding, EncodingMask};
use datafusion::parquet::column::page::{Page, PageReader};
use datafusion::parquet::errors::{ParquetError, Result as ParquetResult};
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::parquet::file::reader::{ChunkReader, Length};
use datafusion::parquet::file::serialized_reader::SerializedPageReader;

use super::codes::{CodedPage, Codes, Passing};
use super::column::FileColumn;
use super::values::values;

/// A file whose column chunks are opened.
pub(super) struct FileReader<'a> {
    pub(super) reader: &'a mut (dyn AsyncFileReader + Send),
    pub(super) metadata: &'a ParquetMetaData,
    /// By the numbers of the columns of the table.
    pub(super) columns: HashMap<usize, FileColumn>,
}

impl FileReader<'_> {
    /// The chunk of a column of the table, if it has codes.
    pub(super) async fn open(&mut self, group: usize, column: usize) -> Option<CodedChunk> {
        CodedChunk::open(self.reader, self.metadata, group, self.columns.get(&column)?).await
    }

    /// Some rows of a column of the table, if it has codes.
    pub(super) async fn rows(
        &mut self,
        group: usize,
        column: usize,
        opened: &mut HashMap<usize, CodedChunk>,
        wanted: &BooleanBuffer,
    ) -> Option<CodedRows> {
        let chunk = match opened.remove(&column) {
            Some(chunk) => chunk,
            None => self.open(group, column).await?,
        };
        chunk.rows(wanted)
    }
}

/// The values of a column of a row group, as codes into a dictionary.
pub(super) struct CodedChunk {
    /// The dictionary, of the type that the table has.
    pub(super) values: ArrayRef,
    pages: SerializedPageReader<ChunkBytes>,
    /// Pages that were read already, before those that were not.
    kept: Vec<Page>,
    pub(super) is_nullable: bool,
    rows: usize,
    /// Of the file, and of its pages as they are looked into.
    pub(super) bytes: usize,
    pub(super) pages_bytes: usize,
}

impl CodedChunk {
    /// The chunk of a column, if it begins with a dictionary of values that the table can have.
    async fn open(
        reader: &mut (dyn AsyncFileReader + Send),
        metadata: &ParquetMetaData,
        group: usize,
        column: &FileColumn,
    ) -> Option<Self> {
        let row_group = metadata.row_group(group);
        let chunk = row_group.column(column.number);
        let has_others = |pages: &EncodingMask| {
            !(pages.is_only(Encoding::RLE_DICTIONARY) || pages.is_only(Encoding::PLAIN_DICTIONARY))
        };
        if chunk.dictionary_page_offset().is_none() || chunk.page_encoding_stats_mask().is_some_and(has_others) {
            return None;
        }
        let (start, length) = chunk.byte_range();
        let encoded = reader.get_bytes(start..start + length).await.ok()?;
        let (bytes, rows) = (encoded.len(), row_group.num_rows().max(0) as usize);
        let pages_bytes = bytes + chunk.uncompressed_size().max(0) as usize;
        let chunk_bytes = Arc::new(ChunkBytes { bytes: encoded, range: start..start + length });
        let mut pages = SerializedPageReader::new(chunk_bytes, chunk, rows, None).ok()?;
        let dictionary = dictionary(&mut pages)?;
        let values = column.as_in_table(values(metadata, column.number, &column.levels, dictionary).ok()??)?;
        Some(Self { values, pages, kept: Vec::new(), is_nullable: column.is_nullable, rows, bytes, pages_bytes })
    }

    /// Of each row, whether its value passes. `None` where some have no codes, or where they are not what the format
    /// says: the decoder finds out why. With `keeps`, pages stay for [`Self::rows`].
    pub(super) fn passing(&mut self, passing: &Passing, keeps: bool) -> Option<BooleanBuffer> {
        // Where none may be null, the null passes as little as it is left out.
        let is_found = |passes: bool| passing.codes.contains(&passes) || (self.is_nullable && passing.null == passes);
        match (is_found(true), is_found(false)) {
            (false, _) => return Some(BooleanBuffer::new_unset(self.rows)),
            (_, false) => return Some(BooleanBuffer::new_set(self.rows)),
            _ => {}
        }
        let mut passed = BooleanBufferBuilder::new(self.rows);
        while let Some(page) = self.pages.get_next_page().ok()? {
            let coded = CodedPage::of(&page, self.is_nullable)?;
            if passed.len() + coded.values > self.rows {
                return None;
            }
            coded.append_passing(passing, &mut passed)?;
            if keeps {
                self.kept.push(page);
            }
        }
        (passed.len() == self.rows).then(|| passed.finish())
    }

    /// The rows for which `wanted` is set, as [`Self::passing`] has it.
    pub(super) fn rows(mut self, wanted: &BooleanBuffer) -> Option<CodedRows> {
        let mut codes = Codes::with_capacity(wanted.count_set_bits());
        let mut row = 0;
        for page in std::mem::take(&mut self.kept) {
            let coded = CodedPage::of(&page, self.is_nullable)?;
            coded.append_codes(&part(wanted, row, coded.values)?, &mut codes)?;
            row += coded.values;
        }
        while let Some(ahead) = self.pages.peek_next_page().ok()? {
            let rows = ahead.num_rows.or(ahead.num_levels)?;
            let wanted = part(wanted, row, rows)?;
            row += rows;
            if wanted.count_set_bits() == 0 {
                self.pages.skip_next_page().ok()?;
                continue;
            }
            let page = self.pages.get_next_page().ok()??;
            let coded = CodedPage::of(&page, self.is_nullable).filter(|coded| coded.values == rows)?;
            coded.append_codes(&wanted, &mut codes)?;
        }
        (row == self.rows).then(|| CodedRows::of(self.values, codes.finish())).flatten()
    }
}

/// Rows as codes into a dictionary, or as their values where that is less.
pub(super) struct CodedRows {
    values: ArrayRef,
    codes: Option<UInt32Array>,
}

impl CodedRows {
    fn of(values: ArrayRef, codes: UInt32Array) -> Option<Self> {
        Some(match codes.len() < values.len() {
            true => Self { values: take(&values, &codes, None).ok()?, codes: None },
            false => Self { values, codes: Some(codes) },
        })
    }

    pub(super) fn len(&self) -> usize {
        self.codes.as_ref().map_or(self.values.len(), UInt32Array::len)
    }

    pub(super) fn bytes(&self) -> usize {
        self.values.get_array_memory_size() + self.codes.as_ref().map_or(0, UInt32Array::get_array_memory_size)
    }

    /// Those of the rows for which `wanted` is set.
    pub(super) fn only(self, wanted: &BooleanArray) -> Option<Self> {
        Some(match self.codes {
            Some(codes) => Self::of(self.values, filter(&codes, wanted).ok()?.as_primitive().clone())?,
            None => Self { values: filter(&self.values, wanted).ok()?, codes: None },
        })
    }

    /// The values of some rows, which share nothing with those of others.
    pub(super) fn get(&self, rows: Range<usize>) -> Result<ArrayRef, ArrowError> {
        match &self.codes {
            Some(codes) => take(&self.values, &codes.slice(rows.start, rows.len()), None),
            None => take(&self.values, &UInt32Array::from_iter_values(rows.start as u32..rows.end as u32), None),
        }
    }
}

fn part(rows: &BooleanBuffer, start: usize, length: usize) -> Option<BooleanBuffer> {
    (start + length <= rows.len()).then(|| rows.slice(start, length))
}

/// The dictionary of a column chunk, if it begins with one.
fn dictionary(pages: &mut dyn PageReader) -> Option<(Bytes, u32)> {
    match pages.get_next_page().ok()?? {
        Page::DictionaryPage { buf, num_values, encoding: Encoding::PLAIN | Encoding::PLAIN_DICTIONARY, .. } => {
            Some((buf, num_values))
        }
        _ => None,
    }
}

/// The bytes of a column chunk, where they are in the file.
struct ChunkBytes {
    bytes: Bytes,
    range: Range<u64>,
}

impl Length for ChunkBytes {
    fn len(&self) -> u64 {
        self.range.end
    }
}

impl ChunkReader for ChunkBytes {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let length = self.range.end.saturating_sub(start) as usize;
        Ok(self.get_bytes(start, length)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let from = start.checked_sub(self.range.start).map(|from| from as usize);
        let part = from.filter(|from| from.saturating_add(length) <= self.bytes.len());
        let part = part.map(|from| self.bytes.slice(from..from + length));
        part.ok_or_else(|| ParquetError::EOF(format!("{length} bytes from {start} on are not in a column chunk")))
    }
}
