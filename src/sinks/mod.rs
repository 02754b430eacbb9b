//! Writing datasets: one file per block, staged and then committed, so that a failure leaves nothing behind; and the
//! trait of other places that take rows.

mod area;
mod completing;
mod datasink;
mod endings;
mod file_names;
mod file_writer;
mod formats;
mod local_commit;
mod local_file;
mod one_process;
mod partitions;
mod path_text;
mod repair;
mod save_mode;
mod staged;
mod staging;
mod target;
mod upload_area;
mod upload_commit;
mod uploads;
mod write_id;
mod write_note;

pub(crate) use area::{StagingArea, StagingDirectory};
pub(crate) use datasink::{AnyDatasink, AnyWriteJob};
pub use datasink::{Datasink, WriteJob};
pub(crate) use endings::{ends_as, without_compression};
pub(crate) use file_names::{FileNames, is_hidden, is_visible};
pub(crate) use file_writer::{FileWriter, GrowingFile, Written};
#[cfg(feature = "cli")]
pub(crate) use formats::parquet;
pub(crate) use formats::{CSV_EXTENSIONS, JSON_EXTENSIONS, KnownFormat, PARQUET_EXTENSIONS, known_formats};
pub use formats::{EncodeRows, WriteFormat};
pub(crate) use partitions::{HIVE_NULL, PartitionColumns};
pub use repair::{Repaired, repair};
pub use save_mode::SaveMode;
pub use staged::WrittenFile;
pub(crate) use staged::{OtherFile, Staged};
pub(crate) use staging::{Begun, Staging};
pub(crate) use target::Target;
pub(crate) use upload_area::{UploadArea, UploadPlaces, WrittenStore};
pub(crate) use uploads::UploadedFile;
pub(crate) use write_id::WriteId;
