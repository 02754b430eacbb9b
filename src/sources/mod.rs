//! Where rows come from. A source is a `TableProvider` whose scan is a `ReadExec`: n read tasks behind
//! `target_partitions` streams.

mod blocks;
mod column_types;
mod columns;
mod datasource;
mod diverted;
mod file_tasks;
mod files;
mod formats;
mod glob;
mod hive;
mod json_lines;
mod listing;
mod parquet;
mod parquet_pieces;
mod range;
mod read_files;
mod tables;
mod text;
#[cfg(feature = "tpch")]
mod tpch;

pub(crate) use blocks::StoredBlocks;
pub use datasource::{Datasource, DatasourceTable};
pub(crate) use diverted::{DivertedRows, ReadDiverted};
pub(crate) use files::FileTable;
pub use formats::FileKind;
pub(crate) use formats::ReadOptions;
pub(crate) use range::{Range, ReadRange};
pub(crate) use read_files::{FormatOptions, ReadFiles};
pub use read_files::{ReadCsvOptions, ReadJsonOptions, ReadParquetOptions};
pub(crate) use tables::{Change, NumberedTable, StoredTable, TableChange, pin_tables};
#[cfg(feature = "tpch")]
pub(crate) use tpch::ReadTpch;
