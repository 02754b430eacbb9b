//! The values of a dictionary, as the decoder would give them.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::array::{ArrayRef, RecordBatchReader, new_empty_array};
use datafusion::parquet::arrow::FieldLevels;
use datafusion::parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use datafusion::parquet::basic::Encoding;
use datafusion::parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use datafusion::parquet::errors::Result;
use datafusion::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

/// The values of a dictionary of a column, of which `levels` are what the decoder would give. `None` where it gives
/// something else.
pub(super) fn values(
    metadata: &ParquetMetaData,
    column: usize,
    levels: &FieldLevels,
    (values, count): (Bytes, u32),
) -> Result<Option<ArrayRef>> {
    let descriptor = metadata.file_metadata().schema_descr().column(column);
    // A run of ones: all are there.
    let definitions = match descriptor.max_def_level() {
        0 => Vec::new(),
        _ => [varint(count << 1), vec![1]].concat(),
    };
    let (page, rows) = (OnePage { metadata, definitions, values, count }, count as usize);
    let mut batches = ParquetRecordBatchReader::try_new_with_row_groups(levels, &page, rows.max(1), None)?;
    Ok(match batches.next().transpose()? {
        Some(batch) if batch.num_rows() == rows && batch.num_columns() == 1 => Some(Arc::clone(batch.column(0))),
        // All rows are null.
        None if rows == 0 => batches.schema().fields().first().map(|field| new_empty_array(field.data_type())),
        _ => None,
    })
}

fn varint(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A dictionary as if it were the only page of a column chunk. It is encoded as one that has no codes.
struct OnePage<'a> {
    metadata: &'a ParquetMetaData,
    definitions: Vec<u8>,
    values: Bytes,
    count: u32,
}

impl RowGroups for OnePage<'_> {
    fn num_rows(&self) -> usize {
        self.count as usize
    }

    fn column_chunks(&self, _column: usize) -> Result<Box<dyn PageIterator>> {
        let page = Page::DataPageV2 {
            buf: [self.definitions.as_slice(), &self.values].concat().into(),
            num_values: self.count,
            encoding: Encoding::PLAIN,
            num_nulls: 0,
            num_rows: self.count,
            def_levels_byte_len: self.definitions.len() as u32,
            rep_levels_byte_len: 0,
            is_compressed: false,
            statistics: None,
        };
        Ok(Box::new(Chunk(Some(Pages(Some(page))))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups().iter().take(1))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

struct Chunk(Option<Pages>);

impl Iterator for Chunk {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(|pages| Ok(Box::new(pages) as _))
    }
}

impl PageIterator for Chunk {}

struct Pages(Option<Page>);

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        Ok(self.0.take())
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let rows = self.0.as_ref().map(|page| page.num_values() as usize);
        Ok(rows.map(|rows| PageMetadata { num_rows: Some(rows), num_levels: Some(rows), is_dict: false }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.0 = None;
        Ok(())
    }
}
