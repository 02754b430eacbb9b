//! Where the pages of a row group are, in files that do not say it: as the headers of the pages tell.
//!
//! A file may have an offset index, and many writers leave it out. The header of a page says how long the page is, and
//! so where the next one begins; to go from one to the next takes a short read for each.

use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::parquet::column::page::PageReader;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder, ParquetMetaData};
use datafusion::parquet::file::page_index::offset_index::OffsetIndexMetaData;
use datafusion::parquet::file::reader::{ChunkReader, Length};
use datafusion::parquet::file::serialized_reader::SerializedPageReader;
use object_store::path::Path;
use object_store::{GetOptions, GetResultPayload, ObjectStore};
use parking_lot::Mutex;

use crate::runtime::holding_up;

/// The pages of some columns of one row group.
#[derive(Debug)]
pub(super) struct FoundPages {
    group: usize,
    /// By column; without pages for columns that were not looked for.
    columns: Vec<OffsetIndexMetaData>,
}

impl FoundPages {
    /// The pages of the columns for which `wanted` holds. `None` where the file is not on a local disk, and where rows
    /// may begin in one page and end in another.
    pub(super) async fn find(
        store: &dyn ObjectStore,
        path: &Path,
        footer: &ParquetMetaData,
        group: usize,
        wanted: impl Fn(&ColumnChunkMetaData) -> bool,
    ) -> Result<Option<Self>> {
        let row_group = footer.row_group(group);
        let is_nested = |column: &ColumnChunkMetaData| column.column_descr().max_rep_level() > 0;
        if row_group.columns().iter().any(|column| wanted(column) && is_nested(column)) {
            return Ok(None);
        }
        // Nothing of it, where it is not a file: it would be sent for nothing.
        let options = GetOptions::new().with_head(true);
        let GetResultPayload::File(file, _) = store.get_opts(path, options).await?.payload else {
            return Ok(None);
        };
        let file = Arc::new(Starts { file, of_reads: Mutex::default() });
        let rows = row_group.num_rows().max(0) as usize;
        let pages = |column: &ColumnChunkMetaData| match wanted(column) {
            true => pages_of(&file, column, rows),
            false => Ok(Some(OffsetIndexBuilder::new().build())),
        };
        let columns = holding_up(|| row_group.columns().iter().map(pages).collect::<ParquetResult<Option<Vec<_>>>>())?;
        Ok(columns.map(|columns| Self { group, columns }))
    }

    /// Pages of the column that has most of them.
    pub(super) fn max_pages(&self) -> usize {
        self.columns.iter().map(|column| column.page_locations().len()).max().unwrap_or(0)
    }

    /// Bytes of the largest page of a column.
    pub(super) fn max_page_bytes(&self, column: usize) -> usize {
        let sizes = self.columns[column].page_locations().iter().map(|page| page.compressed_page_size.max(0) as usize);
        sizes.max().unwrap_or(0)
    }

    /// What a file says of itself, as if it told where these pages are.
    pub(super) fn added_to(&self, metadata: &ParquetMetaData) -> ParquetMetaData {
        let none =
            || metadata.row_group(self.group).columns().iter().map(|_| OffsetIndexBuilder::new().build()).collect();
        let mut groups: Vec<Vec<OffsetIndexMetaData>> = (0..metadata.num_row_groups()).map(|_| none()).collect();
        groups[self.group].clone_from(&self.columns);
        metadata.clone().into_builder().set_offset_index(Some(groups)).build()
    }
}

/// The pages of a column chunk of so many rows. `None` where a page does not say how many of them it has.
fn pages_of(
    file: &Arc<Starts>,
    column: &ColumnChunkMetaData,
    rows: usize,
) -> ParquetResult<Option<OffsetIndexMetaData>> {
    file.of_reads.lock().clear();
    let mut reader = SerializedPageReader::new(Arc::clone(file), column, rows, None)?;
    let mut pages: Vec<(u64, usize)> = Vec::new();
    while let Some(page) = reader.peek_next_page()? {
        let start = file.of_reads.lock().last().copied();
        match (start, page.num_rows.or(page.num_levels)) {
            _ if page.is_dict => {}
            (Some(start), Some(rows)) => pages.push((start, rows)),
            _ => return Ok(None),
        }
        reader.skip_next_page()?;
    }
    if pages.iter().map(|(_, rows)| rows).sum::<usize>() != rows {
        return Ok(None);
    }
    let (begin, length) = column.byte_range();
    let ends = pages.iter().skip(1).map(|(start, _)| *start).chain([begin + length]);
    let mut index = OffsetIndexBuilder::new();
    for ((start, rows), end) in pages.iter().zip(ends) {
        let Ok(bytes) = i32::try_from(end - start) else {
            return Ok(None);
        };
        index.append_offset_and_size(*start as i64, bytes);
        index.append_row_count(*rows as i64);
    }
    Ok(Some(index.build()))
}

/// A file which notes where it was read from: a reader of pages begins where a page does.
struct Starts {
    file: File,
    of_reads: Mutex<Vec<u64>>,
}

impl Length for Starts {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for Starts {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        self.of_reads.lock().push(start);
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.file.get_bytes(start, length)
    }
}
