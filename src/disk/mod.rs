//! Reading files that are in the page cache, writing to local disks, through the page cache or past it, and directories
//! that belong to a process.

mod direct;
#[cfg(target_os = "linux")]
mod local_files;
mod locked;
mod pace;

pub(crate) use direct::{PAGE, Pages, open_direct};
#[cfg(target_os = "linux")]
pub(crate) use local_files::LocalFiles;
pub(crate) use locked::{LockedDirectory, was_left, was_left_or_begun_long_ago};
pub(crate) use pace::{WriteMode, WriteSpeeds};
