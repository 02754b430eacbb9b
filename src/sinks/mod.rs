//! Writing datasets: one file per block, staged and then committed, so that a failure leaves nothing behind; and the
//! trait of other places that take rows.

mod area;
mod datasink;
mod endings;
mod file_names;
mod file_writer;
mod formats;
mod local_commit;
mod local_file;
mod partitions;
mod repair;
mod save_mode;
mod staging;
mod target;
mod uploads;
mod write_id;

pub(crate) use area::{StagingArea, StagingDirectory};
pub(crate) use datasink::{AnyDatasink, AnyWriteJob};
pub use datasink::{Datasink, WriteJob};
pub(crate) use endings::{ends_as, without_compression};
pub(crate) use file_names::{FileNames, is_hidden, is_visible};
pub(crate) use file_writer::{FileWriter, GrowingFile, Written};
pub(crate) use formats::{CSV_EXTENSIONS, JSON_EXTENSIONS, KnownFormat, PARQUET_EXTENSIONS, known_formats};
pub use formats::{EncodeRows, WriteFormat};
pub(crate) use partitions::{HIVE_NULL, PartitionColumns};
pub use repair::{Repaired, repair};
pub use save_mode::SaveMode;
pub use staging::WrittenFile;
pub(crate) use staging::{Begun, OtherFile, Staged, Staging};
pub(crate) use target::Target;
pub(crate) use write_id::WriteId;
