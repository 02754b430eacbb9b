//! Where rows come from. A source is a `TableProvider` whose scan is a `ReadExec`: n read tasks behind
//! `target_partitions` streams.

mod blocks;
mod datasource;
mod diverted;
mod files;
mod formats;
mod range;
mod range_tensor;
mod read_task;
mod tables;
#[cfg(feature = "tpch")]
mod tpch;
mod window;

pub(crate) use blocks::StoredBlocks;
pub use datasource::{Datasource, DatasourceTable, Filters, ReadPlan, ReadRequest};
pub(crate) use diverted::{DivertedRows, ReadDiverted};
pub(crate) use files::{
    ExternalTables, FileChoice, FileTable, FormatOptions, check_local, files_of, first_file, format_of_path,
    read_functions,
};
pub use files::{FileRead, FileSchema, FileShuffle, PathPartitioning};
pub(crate) use formats::ReadOptions;
pub use formats::{
    ReadBinaryFilesOptions, ReadCsvOptions, ReadJsonOptions, ReadParquetOptions, ReadTextOptions, TextEncoding,
};
pub(crate) use range::{Range, ReadRange};
pub(crate) use range_tensor::ReadRangeTensor;
pub use read_task::{ReadTask, TaskOrigin};
pub(crate) use tables::{Change, NumberedTable, StoredTable, TableChange, pin_tables};
#[cfg(feature = "tpch")]
pub(crate) use tpch::ReadTpch;
pub(crate) use window::{WindowBlocks, WindowedTable};
