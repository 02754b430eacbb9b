//! Spill files: one or more directories under one quota, for blocks and for DataFusion's operators alike.
//!
//! A process has a directory of its own in each spill directory, with a lock that the operating system drops when the
//! process dies. Whoever starts next removes the directories whose lock is free, and only those.
//!
//! Blocks are Arrow IPC streams, each at a multiple of 64 bytes in files that grow to about 100 MB, each batch with a
//! checksum. The index is in memory: a spill file outlives neither its blocks nor its process. They are written past
//! the page cache where that is faster. Files of operators have checksums of the parts that were written, beside them
//! in memory.

mod block;
#[cfg(unix)]
mod direct;
mod directories;
mod disk;
mod files;
mod local_disk;
mod operator_files;
mod sweep;

pub(super) use block::SpilledBlock;
pub(super) use directories::TempFile;
pub use directories::{SpillDirectories, SpillFileInfo};
#[cfg(test)]
pub(super) use disk::faulty;
pub(super) use files::SpillFiles;
pub(super) use operator_files::OperatorFiles;
