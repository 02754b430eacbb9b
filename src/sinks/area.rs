//! [`StagingArea`]: where the files of a write are until it is committed.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use object_store::path::Path;

use super::upload_area::UploadArea;
use super::uploads::Upload;
use crate::block::TaskId;
use crate::disk::WriteSpeeds;

/// Where the files of a write are until it is committed. Only what began the write removes anything of it.
#[derive(Debug)]
pub(crate) enum StagingArea {
    /// A hidden directory on a local disk.
    Directory(StagingDirectory),
    /// Uploads to their places in an object store, which are not completed.
    Uploads(Box<UploadArea>),
}

/// A directory that is there as long as the write goes on. Nobody makes it anew: it is gone when the write has ended.
#[derive(Debug)]
pub(crate) struct StagingDirectory {
    path: PathBuf,
    extension: String,
    /// What tells the files of one process, and of one of its attempts, from those of others.
    attempt: Option<u64>,
    pace: Arc<WriteSpeeds>,
}

impl StagingDirectory {
    /// A directory that is there, for files with this ending; those of an attempt of another process than the one that
    /// made it, if that is said.
    pub(crate) fn new(path: PathBuf, extension: &str, attempt: Option<u64>) -> Self {
        Self { path, extension: extension.to_owned(), attempt, pace: Arc::default() }
    }

    pub(crate) fn path(&self) -> &FilePath {
        &self.path
    }

    /// The ending of its files.
    pub(crate) fn extension(&self) -> &str {
        &self.extension
    }

    /// How fast files are written.
    pub(crate) fn pace(&self) -> &Arc<WriteSpeeds> {
        &self.pace
    }

    /// The file of the block `id`.
    pub(crate) fn file_of(&self, id: &TaskId) -> PathBuf {
        self.path.join(self.name_of(id))
    }

    /// How it is called.
    pub(crate) fn name_of(&self, id: &TaskId) -> String {
        match self.attempt {
            Some(attempt) => format!("{attempt}-{id}.{}", self.extension),
            None => format!("{id}.{}", self.extension),
        }
    }
}

impl StagingArea {
    /// The directory of its files, if they are on a local disk.
    pub(crate) fn directory(&self) -> Option<&StagingDirectory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Uploads(_) => None,
        }
    }

    /// An upload of the block `id` to its place in an object store.
    pub(super) async fn upload(&self, id: &TaskId, directory: &Path, buffer_bytes: usize) -> Result<Upload> {
        match self {
            Self::Directory(_) => internal_err!("block {id} goes to a local disk"),
            Self::Uploads(area) => {
                let place = area.place_of(id, directory);
                Upload::begin(place, Arc::clone(area.uploads()), buffer_bytes).await
            }
        }
    }
}

impl From<StagingDirectory> for StagingArea {
    fn from(directory: StagingDirectory) -> Self {
        Self::Directory(directory)
    }
}
