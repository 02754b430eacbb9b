//! Row groups that are read piece by piece, since all of their pages would be too much in memory at once.
//!
//! A reader fetches every page that it may need of a row group before it decodes the first. Of a range of rows it
//! fetches only the pages that have some of them, if the file says where its pages are. Tasks stay what they are: the
//! pieces of a row group are read by one task, one after the other.

use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, RowGroupAccess};
use datafusion::parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::found_pages::FoundPages;
use crate::physical::FirstRow;
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
            let file = file.with_extension(self.access(rows)).with_extension(IsPiece);
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
pub(super) struct PagesOfFile(pub(super) Arc<FoundPages>);

/// That a file stands for one of several pieces of a row group: an extension of it.
#[derive(Debug, Clone, Copy)]
struct IsPiece;

/// Whether a file is one of several pieces of a row group.
pub(super) fn is_piece(file: &PartitionedFile) -> bool {
    file.extension::<IsPiece>().is_some()
}
