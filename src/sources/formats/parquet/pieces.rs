//! Row groups that are read piece by piece, since all of their pages would be too much in memory at once.
//!
//! A reader fetches every page that it may need of a row group before it decodes the first. Of a range of rows it
//! fetches only the pages that have some of them, if the file says where its pages are. Tasks stay what they are: the
//! pieces of a row group are read by one task, one after the other.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderOptions, RowSelection, RowSelector};
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::found_pages::FoundPages;
use crate::physical::{FirstRow, file_scan};
use crate::sources::files::Pieces;

/// Bytes of a page, as most writers limit them.
pub(super) const PAGE_BYTES: usize = 1 << 20;

/// A row group that is read in pieces of about equally many rows.
#[derive(Debug)]
pub(super) struct RowGroupPieces {
    /// Number of the row group, and how many the file has.
    group: usize,
    groups: usize,
    rows: usize,
    number: usize,
    /// Where the pages are, if the file does not say it.
    found: Option<Arc<FoundPages>>,
}

impl RowGroupPieces {
    /// The pieces of row group number `group`, of which columns `wanted` are read, so that each holds about
    /// `max_bytes`. `None` where it is less as a whole, or where nobody knows where its pages are: neither the file nor
    /// `found`. Besides, the bytes that a piece holds.
    pub(super) fn new<'a>(
        footer: &ParquetMetaData,
        group: usize,
        wanted: impl Iterator<Item = (usize, &'a ColumnChunkMetaData)> + Clone,
        found: Option<Arc<FoundPages>>,
        held_bytes: usize,
        max_bytes: usize,
    ) -> Option<(Self, usize)> {
        let are_known = found.is_some() || wanted.clone().all(|(_, column)| column.offset_index_offset().is_some());
        if held_bytes <= max_bytes || !are_known {
            return None;
        }
        let wanted = wanted.map(|(number, column)| {
            let page = found.as_ref().map_or(PAGE_BYTES, |found| found.max_page_bytes(number));
            (compressed(column), page)
        });
        let rows = footer.row_group(group).num_rows().max(0) as usize;
        let largest = wanted.clone().map(|(bytes, _)| bytes).max()?;
        let pages = found.as_ref().map_or(largest.div_ceil(PAGE_BYTES), |found| found.max_pages());
        let number = held_bytes.div_ceil(max_bytes.max(1)).min(pages).min(rows);
        // The page in which a piece begins belongs to the one before it, too. What a page takes when it is decoded is
        // as ever.
        let scratch = held_bytes.saturating_sub(wanted.clone().map(|(bytes, _)| bytes).sum());
        let of_piece = |(bytes, page): (usize, usize)| bytes.min(bytes / number.max(1) + page);
        let of_piece = scratch + wanted.map(of_piece).sum::<usize>();
        (number > 1 && of_piece < held_bytes)
            .then(|| (Self { group, groups: footer.num_row_groups(), rows, number, found }, of_piece))
    }

    fn access(&self, rows: Range<usize>) -> ParquetAccessPlan {
        let selectors =
            [RowSelector::skip(rows.start), RowSelector::select(rows.len()), RowSelector::skip(self.rows - rows.end)];
        let some: Vec<_> = selectors.into_iter().filter(|selector| selector.row_count > 0).collect();
        let mut access = ParquetAccessPlan::new_none(self.groups);
        access.set(self.group, RowGroupAccess::Selection(RowSelection::from(some)));
        access
    }
}

impl Pieces for RowGroupPieces {
    fn of_file(&self, file: &PartitionedFile, first_row: Option<usize>) -> Vec<PartitionedFile> {
        let start = |piece: usize| (piece as u128 * self.rows as u128 / self.number as u128) as usize;
        let part = |piece: usize| {
            let rows = start(piece)..start(piece + 1);
            let file = match first_row {
                Some(row) => file.clone().with_extension(FirstRow(row + rows.start)),
                None => file.clone(),
            };
            let file = file.with_extension(self.access(rows));
            match &self.found {
                Some(found) => file.with_extension(PagesOfFile(Arc::clone(found))),
                None => file,
            }
        };
        (0..self.number).map(part).collect()
    }
}

fn compressed(column: &ColumnChunkMetaData) -> usize {
    column.compressed_size().max(0) as usize
}

/// The pages of a piece, as an extension of its file.
#[derive(Debug, Clone)]
struct PagesOfFile(Arc<FoundPages>);

/// Whether a file is one of several pieces of a row group.
fn is_piece(file: &PartitionedFile) -> bool {
    file.extension::<ParquetAccessPlan>().is_some()
}

/// A scan which asks where the pages are, in files that it reads in pieces.
pub(super) fn with_page_offsets(scan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let config = file_scan(&scan).filter(|config| config.file_groups.iter().any(|group| group.iter().any(is_piece)));
    config.and_then(asking_for_offsets).unwrap_or(scan)
}

fn asking_for_offsets(config: &FileScanConfig) -> Option<Arc<dyn ExecutionPlan>> {
    let source = config.file_source().downcast_ref::<ParquetSource>()?;
    let readers = Arc::clone(source.parquet_file_reader_factory()?);
    let source = source.clone().with_parquet_file_reader_factory(Arc::new(PageReaders(readers)));
    let config = FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
    Some(DataSourceExec::from_data_source(config))
}

/// Readers that know where the pages are in files that are read in pieces.
#[derive(Debug)]
struct PageReaders(Arc<dyn ParquetFileReaderFactory>);

impl ParquetFileReaderFactory for PageReaders {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let (is_piece, found) = (is_piece(&file), file.extension::<PagesOfFile>().cloned());
        let reader = self.0.create_reader(partition_index, file, metadata_size_hint, metrics)?;
        Ok(if is_piece { Box::new(PageReader { reader, found }) } else { reader })
    }
}

/// A reader that knows where the pages are, whether or not it is asked for that.
struct PageReader {
    reader: Box<dyn AsyncFileReader + Send>,
    /// What the file does not say.
    found: Option<PagesOfFile>,
}

impl AsyncFileReader for PageReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        self.reader.get_byte_ranges(ranges)
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        let options = options.cloned().unwrap_or_default().with_page_index_policy(PageIndexPolicy::Optional);
        async move {
            let metadata = self.reader.get_metadata(Some(&options)).await?;
            Ok(match &self.found {
                Some(PagesOfFile(found)) => Arc::new(found.added_to(&metadata)),
                None => metadata,
            })
        }
        .boxed()
    }
}
