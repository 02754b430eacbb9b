//! Reading files that are in the page cache, writing to local disks, through the page cache or past it, directories
//! that belong to a process, and what one that dies was about to commit.

mod commit_record;
mod direct;
#[cfg(target_os = "linux")]
mod local_files;
mod locked;
mod pace;

pub(crate) use commit_record::{CommitRecord, Ended, OldFile, SET_ASIDE, end_left, remove_left};
pub(crate) use direct::{PAGE, Pages, open_direct};
#[cfg(target_os = "linux")]
pub(crate) use local_files::LocalFiles;
use locked::was_left_or_begun_long_ago;
pub(crate) use locked::{LockedDirectory, was_left};
pub(crate) use pace::{WriteMode, WriteSpeeds};
