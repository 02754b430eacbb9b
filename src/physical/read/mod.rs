//! The operator that reads: a scan as tasks, and the files of each.

mod clock;
mod counts;
mod dictionary;
mod exec;
mod files;
mod footer;
mod late;
mod memory;
mod pruning;
mod ranges;
mod row_columns;
mod scanning;
mod task;

pub(crate) use counts::FileCounts;
pub(crate) use exec::ReadExec;
pub(crate) use files::{FilesOfTask, FirstRow, ReadFiles, file_scan, is_as_listed, shown_root};
pub(crate) use footer::{RowGroupStatistics, first_byte};
pub(crate) use memory::ReadMemory;
pub(crate) use ranges::ValueRanges;
pub(crate) use row_columns::{RowColumn, RowColumns};
