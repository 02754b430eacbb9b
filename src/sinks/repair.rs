//! Ends writes to local directories whose processes have died.

use std::path::Path;

use datafusion::common::{Result, exec_err};

use crate::disk::{Ended, SET_ASIDE, end_left};

/// How the directories of files are called that are not complete.
pub(super) const PREFIX: &str = ".blockyard-";
/// How those of what is being removed end.
pub(super) const GONE: &str = "-gone";

/// What was done about writes whose processes have died.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Commits that had begun, and were finished.
    pub finished: usize,
    /// Files that came to their places for that.
    pub files: usize,
    /// Writes that had not come to their commit, whose files were removed.
    pub removed: usize,
    /// Why commits that had begun could not be finished: the directory of each, and the error.
    pub failed: Vec<String>,
}

impl Repaired {
    /// Fails where a commit could not be finished.
    pub(super) fn check(&self) -> Result<()> {
        match self.failed.first() {
            Some(why) => exec_err!("a write was cut short in its commit, which cannot be finished: {why}"),
            None => Ok(()),
        }
    }
}

/// Ends the writes to a directory whose processes have died: a commit that had begun is finished, and of other writes
/// what they have staged is removed. The next write to the directory does the same. Not what belongs to other users.
///
/// # Errors
///
/// Where there is no such directory.
pub fn repair(directory: impl AsRef<Path>) -> std::io::Result<Repaired> {
    end_writes(directory.as_ref(), false)
}

/// The same, for a process that may be the only one which commits.
pub(super) fn end_writes(directory: &Path, is_alone: bool) -> std::io::Result<Repaired> {
    let mut repaired = Repaired::default();
    for entry in std::fs::read_dir(directory)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || name.ends_with(SET_ASIDE) {
            continue;
        }
        match end_left(&entry.path(), is_alone) {
            Ok(Ended::Finished(files)) => {
                repaired.finished += 1;
                repaired.files += files;
            }
            Ok(Ended::Removed) => repaired.removed += usize::from(!name.ends_with(GONE)),
            Ok(Ended::Left) => {}
            Err(e) => repaired.failed.push(format!("'{}': {e}", entry.path().display())),
        }
    }
    Ok(repaired)
}
