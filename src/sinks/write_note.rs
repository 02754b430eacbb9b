//! What is noted of a write with a name in `_blockyard/`, which no read looks at: that it is complete; or, in an object
//! store, which uploads it is about to complete, for whoever comes next.
//!
//! A store takes one note of a name, however many runs of the write come at once: whose note is there has written it.

use std::time::{SystemTime, UNIX_EPOCH};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use serde::{Deserialize, Serialize};

use super::uploads::UploadedFile;
use super::write_id::WriteId;
use crate::error::ErrorContext;

/// Seconds that no commit takes.
const LONGEST_COMMIT: i64 = 60 * 60;
/// What the client of Google's stores says where the server has not said the version of an object.
const NO_VERSION: &str = "Version required for conditional update";

/// The directory of the notes.
const NOTES: &str = "_blockyard";

/// What is noted. Of a write that is not complete there are no rows, as far as others know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Note {
    /// It is complete.
    Complete {
        rows: usize,
        files: usize,
        /// The run whose files they are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
    },
    /// It is about to be completed.
    Pending { pending: Pending },
    /// What was about to be completed was gone. The next run writes anew.
    Abandoned { abandoned: String },
}

/// What a run of a write was about to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pending {
    /// That of no other run.
    pub(super) run: String,
    pub(super) rows: usize,
    pub(super) uploads: Vec<UploadedFile>,
    /// Files that go when these are there.
    pub(super) old: Vec<String>,
}

impl Note {
    /// The rows, if it is complete.
    pub(super) fn rows(&self) -> Option<usize> {
        match self {
            Self::Complete { rows, .. } => Some(*rows),
            Self::Pending { .. } | Self::Abandoned { .. } => None,
        }
    }

    /// Whose it is, if that is said.
    pub(super) fn run(&self) -> Option<&String> {
        match self {
            Self::Complete { run, .. } => run.as_ref(),
            Self::Pending { pending } => Some(&pending.run),
            Self::Abandoned { abandoned } => Some(abandoned),
        }
    }
}

/// A note that is there.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) note: Note,
    /// Which of those that were at its place.
    pub(super) version: UpdateVersion,
    /// When it was put, in seconds since 1970.
    put_at: i64,
}

impl Found {
    /// Whether its run may still be at work. Clocks differ by less.
    pub(super) fn is_new(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        now as i64 - self.put_at < LONGEST_COMMIT
    }
}

/// Where the note of a write is.
pub(super) struct NotePlace<'a> {
    store: &'a dyn ObjectStore,
    pub(super) path: Path,
}

impl<'a> NotePlace<'a> {
    /// That of a write to a directory.
    pub(super) fn of(write: &WriteId, store: &'a dyn ObjectStore, directory: &Path) -> Self {
        Self { store, path: directory.clone().join(NOTES).join(format!("{}.json", write.name())) }
    }

    /// The note, if there is one.
    pub(super) async fn read(&self) -> Result<Option<Found>> {
        let path = &self.path;
        let read = async {
            let found = self.store.get(path).await?;
            let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            let put_at = found.meta.last_modified.timestamp();
            Ok((found.bytes().await?, version, put_at))
        };
        let (bytes, version, put_at) = match read.await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(DataFusionError::from(e)).while_doing(|| format!("reading '{path}'")),
        };
        let note = serde_json::from_slice(&bytes)
            .map_err(|e| exec_datafusion_err!("'{path}' is no note of a write that was completed: {e}"))?;
        Ok(Some(Found { note, version, put_at }))
    }

    /// Puts a note where none is, or in the place of the one that was found; not where another run was faster. A store
    /// that cannot tell takes any.
    pub(super) async fn put(&self, note: &Note, instead_of: Option<&Found>) -> Result<bool> {
        let json = serde_json::to_vec(note).map_err(|e| DataFusionError::External(Box::new(e)))?;
        let payload = PutPayload::from(json);
        let mode = instead_of.map_or(PutMode::Create, |found| PutMode::Update(found.version.clone()));
        let put = match self.store.put_opts(&self.path, payload.clone(), mode.into()).await {
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => self.store.put(&self.path, payload).await,
            // A server that does not say versions.
            Err(e) if instead_of.is_some() && e.to_string().contains(NO_VERSION) => {
                self.store.put(&self.path, payload).await
            }
            put => put,
        };
        match put {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // It was removed meanwhile.
            Err(Error::NotFound { .. }) if instead_of.is_some() => Ok(false),
            Err(e) => Err(DataFusionError::from(e)).while_doing(|| format!("writing '{}'", self.path)),
        }
    }

    /// Notes that the write is complete, on a disk whose writers wait for each other.
    pub(super) async fn is_complete(&self, rows: usize, files: usize) -> Result<()> {
        let json = serde_json::to_vec(&Note::Complete { rows, files, run: None });
        let json = json.map_err(|e| DataFusionError::External(Box::new(e)))?;
        let put = self.store.put(&self.path, PutPayload::from(json)).await.map_err(DataFusionError::from);
        put.while_doing(|| format!("writing '{}'", self.path)).map(|_| ())
    }
}
