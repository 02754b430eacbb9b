//! Row groups as parts of read tasks, and the memory that reading them takes.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use datafusion::parquet::file::statistics::Statistics;
use object_store::{ObjectMeta, ObjectStore};

use super::found_pages::FoundPages;
use super::pieces::{PAGE_BYTES, RowGroupPieces};
use crate::physical::{ValueRanges, first_byte};
use crate::sources::files::{Pieces, Unit};

/// Column chunks of fewer bytes are many small buffers.
const SMALL_CHUNK: usize = 256 << 10;

/// Row groups of some files.
#[derive(Debug, Default)]
pub(super) struct RowGroups {
    /// One for each row group that is to be read, and one for each file without any.
    pub(super) units: Vec<Unit>,
    /// Their rows.
    pub(super) rows: usize,
    /// Bytes of a decoded row, in the row group where rows are largest.
    pub(super) row_bytes: usize,
    /// Rows and bytes of all row groups, also of those that are not to be read.
    pub(super) all: (usize, usize),
    /// What the footers say of the values of whole numbers and days.
    pub(super) ranges: ValueRanges,
    /// Whether there are files whose footers could not be read, or were not.
    pub(super) is_partial: bool,
    /// How many row groups are to be read, and how many there are.
    pub(super) row_groups: (usize, usize),
    /// Columns of the files that the table does not have.
    pub(super) left_out: BTreeSet<String>,
}

impl RowGroups {
    /// Those of one file and then those of the next.
    pub(super) fn and(mut self, next: Self) -> Self {
        self.units.extend(next.units);
        self.left_out.extend(next.left_out);
        let ((kept, all), (more, more_of_all)) = (self.row_groups, next.row_groups);
        Self {
            row_groups: (kept + more, all + more_of_all),
            all: (self.all.0 + next.all.0, self.all.1 + next.all.1),
            rows: self.rows + next.rows,
            row_bytes: self.row_bytes.max(next.row_bytes),
            ranges: self.ranges.and(next.ranges),
            is_partial: self.is_partial || next.is_partial,
            ..self
        }
    }

    /// A file of which only the size is known.
    pub(super) fn unknown(file: usize, size: u64) -> Self {
        let unit = Unit {
            file,
            range: (0, size),
            first_row: Some(0),
            bytes: size as usize,
            held_bytes: size as usize,
            pieces: None,
        };
        Self { units: vec![unit], is_partial: true, ..Self::default() }
    }

    /// The same, of a file with columns that the table does not have.
    pub(super) fn without(self, left_out: Vec<String>) -> Self {
        Self { left_out: left_out.into_iter().collect(), ..self }
    }

    /// The row groups of file number `file`, which has `size` bytes, for a scan of these columns, of which a task
    /// should not hold more than `max_bytes` at once. `kept` says which are to be read, where these are not all.
    pub(super) async fn of(
        file: usize,
        meta: &ObjectMeta,
        footer: &ParquetMetaData,
        kept: Option<&[bool]>,
        columns: &[&str],
        max_bytes: usize,
        store: &dyn ObjectStore,
    ) -> Result<Self> {
        let size = meta.size;
        let mut found = Self { row_groups: (0, footer.num_row_groups()), ..Default::default() };
        let (mut begin, mut first_row) = (0, 0);
        for (index, group) in footer.row_groups().iter().enumerate() {
            // A reader takes the row groups whose first byte is in its range.
            let next = footer.row_groups().get(index + 1).map_or(size, first_byte);
            let (range, group_row, rows) = ((begin, next), first_row, group.num_rows().max(0) as usize);
            (begin, first_row) = (next, first_row + rows);
            let bytes = group.total_byte_size().max(0) as usize;
            found.all = (found.all.0 + rows, found.all.1 + bytes);
            if kept.is_some_and(|kept| !kept[index]) {
                continue;
            }
            found.row_groups.0 += 1;
            found.rows += rows;
            let wanted = || group.columns().iter().filter(|column| is_among(column, columns));
            let numbered = group.columns().iter().enumerate().filter(|(_, column)| is_among(column, columns));
            // The reader fetches all chunks of a row group before it decodes the first page.
            let whole_bytes = wanted().map(held_bytes).sum();
            let says_pages = wanted().all(|column| column.offset_index_offset().is_some());
            let pages = match whole_bytes > max_bytes && !says_pages {
                true => FoundPages::find(store, &meta.location, footer, index, |c| is_among(c, columns)).await?,
                false => None,
            };
            let pieces = RowGroupPieces::new(footer, index, numbered, pages.map(Arc::new), whole_bytes, max_bytes);
            let (pieces, held_bytes) = match pieces {
                Some((pieces, of_piece)) => (Some(Arc::new(pieces) as Arc<dyn Pieces>), of_piece),
                None => (None, whole_bytes),
            };
            wanted().for_each(|column| note_range(column, group.num_rows(), &mut found.ranges));
            found.units.push(Unit { file, range, first_row: Some(group_row), bytes, held_bytes, pieces });
            let decoded: usize = wanted().map(|column| decoded_bytes(column, group.num_rows())).sum();
            found.row_bytes = found.row_bytes.max(decoded.div_ceil(group.num_rows().max(1) as usize));
        }
        if footer.num_row_groups() == 0 {
            found.units.push(Unit {
                file,
                range: (0, size),
                first_row: Some(0),
                bytes: 0,
                held_bytes: 0,
                pieces: None,
            });
        }
        Ok(found)
    }
}

/// What opened files tell of others.
#[derive(Debug, Default)]
pub(super) struct Known {
    file_bytes: u64,
    rows: usize,
    bytes: usize,
    row_bytes: usize,
    /// The most bytes that a reader holds for a byte of a file.
    held: f64,
}

impl Known {
    /// What these files tell, each with its size.
    pub(super) fn of<'a>(files: impl Iterator<Item = (u64, &'a RowGroups)>) -> Self {
        files.filter(|(size, found)| *size > 0 && !found.is_partial).fold(Self::default(), |all, (size, found)| {
            let held = found.units.iter().map(|unit| unit.held_bytes).max().unwrap_or(0);
            Self {
                file_bytes: all.file_bytes + size,
                rows: all.rows + found.all.0,
                bytes: all.bytes + found.all.1,
                row_bytes: all.row_bytes.max(found.row_bytes),
                held: all.held.max(held as f64 / size as f64),
            }
        })
    }

    /// A file that was not opened.
    pub(super) fn estimated(&self, file: usize, size: u64) -> RowGroups {
        let unknown = RowGroups::unknown(file, size);
        if self.file_bytes == 0 {
            return unknown;
        }
        let part = |all: usize| (all as u128 * u128::from(size) / u128::from(self.file_bytes)) as usize;
        let held_bytes = (size as f64 * self.held.max(1.0)) as usize;
        let units = unknown.units.into_iter().map(|unit| Unit { bytes: part(self.bytes), held_bytes, ..unit });
        RowGroups {
            units: units.collect(),
            rows: part(self.rows),
            row_bytes: self.row_bytes,
            is_partial: true,
            ..RowGroups::default()
        }
    }
}

/// What a column chunk says of its values, where they are whole numbers or days.
fn note_range(column: &ColumnChunkMetaData, rows: i64, ranges: &mut ValueRanges) {
    let [name] = column.column_path().parts() else { return };
    let range = match column.statistics() {
        // There is no value.
        Some(said) if said.null_count_opt().is_some_and(|nulls| nulls as i64 == rows) => return,
        Some(Statistics::Int32(said)) => {
            said.min_opt().zip(said.max_opt()).map(|(a, b)| (i64::from(*a), i64::from(*b)))
        }
        Some(Statistics::Int64(said)) => said.min_opt().zip(said.max_opt()).map(|(a, b)| (*a, *b)),
        _ => None,
    };
    ranges.note(name, range);
}

fn is_among(column: &ColumnChunkMetaData, columns: &[&str]) -> bool {
    column.column_path().parts().first().is_some_and(|root| columns.contains(&root.as_str()))
}

fn held_bytes(column: &ColumnChunkMetaData) -> usize {
    let (compressed, decoded) = (column.compressed_size().max(0) as usize, column.uncompressed_size().max(0) as usize);
    // A page that is being decoded, and its dictionary.
    let bytes = compressed + decoded.min(2 * PAGE_BYTES);
    // Small buffers grow, and an allocator has four sizes between a power of two and the next. Of large ones, what is
    // not written to takes no memory.
    if compressed < SMALL_CHUNK { bytes + bytes / 4 } else { bytes }
}

fn decoded_bytes(column: &ColumnChunkMetaData, rows: i64) -> usize {
    use datafusion::parquet::basic::Type;
    let fixed = match column.column_type() {
        Type::BOOLEAN => Some(1),
        Type::INT32 | Type::FLOAT => Some(4),
        Type::INT64 | Type::DOUBLE | Type::INT96 => Some(8),
        Type::FIXED_LEN_BYTE_ARRAY => Some(column.column_descr().type_length().max(0) as usize),
        Type::BYTE_ARRAY => None,
    };
    // Repeated columns have more values than rows.
    let values = column.num_values().max(rows).max(0) as usize;
    match fixed {
        Some(bytes) => values * bytes,
        None => {
            let exact = column.unencoded_byte_array_data_bytes().map(|bytes| bytes.max(0) as usize);
            4 * values + exact.unwrap_or_else(|| column.uncompressed_size().max(0) as usize)
        }
    }
}
