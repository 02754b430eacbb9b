//! Writing to local disks, through the page cache or past it, and directories that belong to a process.

mod direct;
mod locked;
mod pace;

pub(crate) use direct::{PAGE, Pages, open_direct};
pub(crate) use locked::{LockedDirectory, was_left, was_left_or_begun_long_ago};
pub(crate) use pace::{WriteMode, WriteSpeeds};
