//! Files of a write: those that nobody can read yet, and those that were committed.

use object_store::path::Path;

use crate::block::TaskId;

/// A file that is complete, but not visible.
#[derive(Debug)]
pub(crate) struct Staged {
    /// Which block it is.
    pub(crate) id: TaskId,
    /// Its rows.
    pub(crate) rows: usize,
    /// Its directory below that of the write.
    pub(crate) directory: Path,
    /// What is known of the file where another process has written it.
    pub(crate) elsewhere: Option<OtherFile>,
}

/// A file that another process has staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherFile {
    /// How it is called there.
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// A file of a write that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Its path on a disk of this machine, or its address.
    pub path: String,
    /// Its rows.
    pub rows: usize,
    /// Its bytes.
    pub bytes: u64,
}
