//! The commit protocol: nothing can be read of a write before all of it is written.
//!
//! On local disks files are written into a hidden directory beside their place and renamed when all are complete. A
//! reader never sees part of a file, and sees none of the files before all of them are written. Renaming many files is
//! not atomic: a process that is killed in that moment leaves some of them, and a record of what it was about to do
//! (`local_commit.rs`). The next write to the same place finishes that, or [`repair`](super::repair()). What had been
//! staged without one is removed then, or by the next session with the same spill directory. Until then it stays in a
//! `.blockyard-*` directory, and what an overwrite replaces in one that ends with `-old`. Readers ignore both. Writes
//! to one local directory are committed one after the other.
//!
//! In object stores files are uploads to their places, which are completed when all are uploaded: nothing is copied.
//! Meanwhile readers see those that are completed, and after them what an overwrite deletes last. Their names have the
//! number of the write: two that append at once take no file from each other. A process that is killed leaves uploads
//! that nobody sees; stores remove these by a rule for incomplete ones. Those of a write with a name are noted when
//! they are about to be completed, and its next run does that (`upload_commit.rs`).

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::time::sleep;

use super::area::{StagingArea, StagingDirectory};
use super::completing::finish;
use super::file_names::{FileNames, is_visible};
use super::repair::{GONE, PREFIX, end_writes};
use super::save_mode::SaveMode;
use super::staged::{Staged, WrittenFile};
use super::target::Target;
use super::upload_area::{UploadArea, UploadPlaces, WrittenStore};
use super::write_id::WriteId;
use super::write_note::{Note, NotePlace};
use crate::disk::{CommitRecord, LockedDirectory, SET_ASIDE};
use crate::runtime::to_its_end;

/// How often it is looked whether another write has been committed.
const LOOK: Duration = Duration::from_millis(5);

/// How a write begins.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is to be written.
    Write(Box<Staging>),
    /// What is there is to stay.
    LeaveIt,
    /// It has been written, with so many rows.
    Done(usize),
}

/// One write that has not been committed. Dropping it removes what was staged on local disks.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) target: Target,
    /// The directory of the finished files.
    pub(super) directory: Path,
    area: Arc<StagingArea>,
    /// Its directory, where it is one.
    pub(super) staged: Path,
    /// Where old files wait until the new ones are in place. It is never removed with files in it: a commit that is cut
    /// short must not take them along.
    pub(super) set_aside: Path,
    /// The numbers of the next files in each directory, behind those that are there if the write appends.
    pub(super) next_numbers: HashMap<Path, usize>,
    /// Whether the directory was there before.
    was_there: bool,
    /// The staged directory on local disks.
    local: Option<LockedDirectory>,
    /// What tells the write apart in the names of files.
    pub(super) write: WriteId,
}

impl Staging {
    /// Prepares a write. Fails where the mode says that nothing may be there.
    pub(crate) async fn begin(written: WrittenStore, target: Target) -> Result<Begun> {
        if let Some(local) = local_root_of(&target) {
            // Where there is no directory, nobody has written.
            end_writes(&local, false).unwrap_or_default().check()?;
        }
        if let Some(rows) = rows_written(&written, &target).await? {
            return Ok(Begun::Done(rows));
        }
        let existing = existing(written.store.as_ref(), &target).await?;
        if target.mode == SaveMode::Ignore && !existing.is_empty() {
            return Ok(Begun::LeaveIt);
        }
        target.check_mode(&existing)?;
        Ok(Begun::Write(Box::new(Self::beside(written, target, &existing)?)))
    }

    /// A write beside what is there.
    fn beside(into: WrittenStore, target: Target, existing: &[Path]) -> Result<Self> {
        let store = Arc::clone(&into.store);
        let directory = directory_of(&target);
        let name = format!("{PREFIX}{}", uuid::Uuid::new_v4().simple());
        let write = target.write_id.clone().unwrap_or_else(WriteId::drawn);
        let next_numbers = next_numbers(&target, existing);
        let staged = directory.clone().join(name.as_str());
        let set_aside = directory.clone().join(format!("{name}{SET_ASIDE}"));
        let local = local_root_of(&target);
        let was_there = local.as_ref().is_none_or(|local| local.exists());
        let local = local.map(|local| {
            let created = LockedDirectory::create(&local, &name, &format!("{name}.new"));
            let created = created.map_err(|e| exec_datafusion_err!("cannot write to '{}': {e}", local.display()))?;
            open_as(created.path(), &local);
            Ok::<_, DataFusionError>(created)
        });
        let local = local.transpose()?;
        let area = match &local {
            Some(local) => StagingDirectory::new(local.path().to_owned(), &target.extension, None).into(),
            None => {
                let places = UploadPlaces::of(&target, &write, &next_numbers);
                StagingArea::Uploads(Box::new(UploadArea::new(into, places)))
            }
        };
        let area = Arc::new(area);
        Ok(Self { store, target, directory, area, staged, set_aside, next_numbers, was_there, local, write })
    }

    /// The directory of the finished files, on local disks.
    fn local_root(&self) -> Option<PathBuf> {
        local_root_of(&self.target)
    }

    /// Where its files are until they are committed.
    pub(crate) fn area(&self) -> &Arc<StagingArea> {
        &self.area
    }

    /// Whether files are written to a local disk, and moved to their places later.
    fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// The directory of the staged files, on local disks.
    pub(crate) fn local_directory(&self) -> Option<&std::path::Path> {
        self.local.as_ref().map(LockedDirectory::path)
    }

    /// Makes the staged files visible, numbered in the order of their ids in each directory. Returns them in the order
    /// of their rows; no files where the write had happened already, and nothing where it leaves those alone that
    /// another one has put there meanwhile.
    pub(crate) async fn commit(self: &Arc<Self>, files: Vec<Staged>) -> Result<Option<Vec<WrittenFile>>> {
        // Of those who overwrite a place at once, the last one stays.
        let alone = self.alone().await?;
        if let Some(local) = self.local_root() {
            // What others were about to commit comes first.
            end_writes(&local, alone.is_some())?.check()?;
        }
        let staging = Arc::clone(self);
        // A query that is cancelled now leaves all files, not some.
        to_its_end(async move {
            let _alone = alone;
            staging.commit_alone(files).await
        })
        .await
    }

    async fn commit_alone(&self, files: Vec<Staged>) -> Result<Option<Vec<WrittenFile>>> {
        if [SaveMode::Error, SaveMode::Ignore].contains(&self.target.mode) {
            // Another one may have been faster.
            let existing = existing(self.store.as_ref(), &self.target).await?;
            self.target.check_mode(&existing)?;
            if !existing.is_empty() {
                self.abort().await?;
                return Ok(None);
            }
        }
        let Some(write) = &self.target.write_id else { return self.publish(files).await };
        if let StagingArea::Uploads(area) = self.area.as_ref()
            && area.shared().is_some()
        {
            return self.complete_once(write, area, sorted(files)).await.map(Some);
        }
        let note = NotePlace::of(write, self.store.as_ref(), &self.directory);
        if note.read().await?.is_some_and(|found| found.note.rows().is_some()) {
            // Another run of it was faster.
            self.abort().await?;
            return Ok(Some(Vec::new()));
        }
        let (rows, number) = (files.iter().map(|file| file.rows).sum(), files.len());
        let written = self.publish(files).await?;
        if written.is_some() {
            note.is_complete(rows, number).await?;
        }
        Ok(written)
    }

    async fn publish(&self, files: Vec<Staged>) -> Result<Option<Vec<WrittenFile>>> {
        let (files, old) = (sorted(files), self.old_files().await?);
        match self.area.as_ref() {
            StagingArea::Directory(staged) => self.publish_staged(staged, &old, files).await,
            StagingArea::Uploads(area) => self.complete(area, &old, files).await.map(Some),
        }
    }

    /// The files that go when the new ones are there. Fails where these must not be beside others.
    pub(super) async fn old_files(&self) -> Result<Vec<Path>> {
        let existing = match (self.target.replaces() || self.target.write_id.is_some()) && !self.target.single_file {
            true => visible_files(self.store.as_ref(), &self.directory).await?,
            false => Vec::new(),
        };
        if self.target.mode == SaveMode::Overwrite {
            self.target.check_no_strangers(&existing)?;
        }
        Ok(existing.into_iter().filter(|path| self.target.is_old(path)).collect())
    }

    /// What is told of a file that can be read now.
    pub(super) fn written(&self, place: &Path, rows: usize, bytes: u64) -> WrittenFile {
        let path = match self.is_local() {
            true => format!("/{place}"),
            false => format!("{}{place}", self.target.url.object_store()),
        };
        WrittenFile { path, rows, bytes }
    }

    /// Waits until nobody else commits to the same directory, as far as it is a local one. Dropping it lets others go
    /// on.
    async fn alone(&self) -> Result<Option<File>> {
        if self.local.is_none() || !cfg!(unix) {
            return Ok(None);
        }
        let directory = File::open(format!("/{}", self.directory))?;
        loop {
            match directory.try_lock() {
                Ok(()) => return Ok(Some(directory)),
                Err(TryLockError::WouldBlock) => sleep(LOOK).await,
                // Some file systems have no locks.
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => return Ok(None),
                Err(TryLockError::Error(e)) => return Err(e.into()),
            }
        }
    }

    /// Removes what was staged.
    pub(crate) async fn abort(&self) -> Result<()> {
        match self.area.as_ref() {
            // It goes with its directory.
            StagingArea::Directory(_) => {}
            StagingArea::Uploads(area) => area.uploads().abort().await,
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(local) = self.local.take() {
            let directory = local.path().to_owned();
            if CommitRecord::is_in(&directory) {
                // Whoever comes next does what is noted.
                return;
            }
            // After a commit the directory is empty; after a failure it is not. Nothing more can be done if this fails.
            // Under another name it gets no more files of processes that have not heard of it.
            let gone = PathBuf::from(format!("{}{GONE}", directory.display()));
            let renamed = std::fs::rename(&directory, &gone);
            let _removed = std::fs::remove_dir_all(if renamed.is_ok() { gone } else { directory });
            // This removes only an empty directory.
            let _removed = std::fs::remove_dir(format!("/{}", self.set_aside));
            if !self.was_there {
                // Only an empty directory can be removed this way: nothing was written.
                let _removed = std::fs::remove_dir(format!("/{}", self.directory));
            }
        }
    }
}

/// In the order of their rows.
fn sorted(mut files: Vec<Staged>) -> Vec<Staged> {
    files.sort_by(|a, b| a.id.cmp(&b.id));
    files
}

/// The rows of a write with a name that is complete, or could be completed.
async fn rows_written(written: &WrittenStore, target: &Target) -> Result<Option<usize>> {
    let Some(write) = &target.write_id else { return Ok(None) };
    let note = NotePlace::of(write, written.store.as_ref(), &directory_of(target));
    let Some(found) = note.read().await? else { return Ok(None) };
    let Some(uploads) = &written.uploads else { return Ok(found.note.rows()) };
    let objects = written.store.as_ref();
    let old = async || match target.replaces() {
        true => {
            Ok(visible_files(objects, target.url.prefix()).await?.into_iter().filter(|p| target.is_old(p)).collect())
        }
        false => Ok(Vec::new()),
    };
    let is_complete = finish(&note, objects, uploads.as_ref(), &found, old).await?;
    let rows = match &found.note {
        Note::Pending { pending } => Some(pending.rows),
        note => note.rows(),
    };
    Ok(rows.filter(|_| is_complete))
}

/// Lets those make files in a directory who may in another one: executors may be of other users. What cannot be changed
/// stays, and they send rows.
fn open_as(directory: &std::path::Path, other: &std::path::Path) {
    #[cfg(unix)]
    if let Ok(others) = std::fs::metadata(other) {
        use std::os::unix::fs::PermissionsExt;
        // In a directory of which only owners may remove files, this process could not move those of others.
        let mode = others.permissions().mode() & 0o777 | 0o700;
        let _changed = std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode));
    }
    #[cfg(not(unix))]
    let _same = (directory, other);
}

/// Files under a directory that are not hidden. A directory which does not exist has none.
async fn visible_files(store: &dyn ObjectStore, directory: &Path) -> Result<Vec<Path>> {
    let listed: Result<Vec<Path>, _> = store.list(Some(directory)).map_ok(|meta| meta.location).try_collect().await;
    match listed {
        Ok(files) => Ok(files.into_iter().filter(|path| is_visible(directory, path)).collect()),
        Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
        Err(e) => Err(DataFusionError::from(e)),
    }
}

/// The directory of the finished files.
fn directory_of(target: &Target) -> Path {
    match target.single_file {
        true => parent(target.url.prefix()),
        false => target.url.prefix().clone(),
    }
}

/// The same on local disks.
fn local_root_of(target: &Target) -> Option<PathBuf> {
    let directory = directory_of(target);
    (target.url.scheme() == "file").then(|| PathBuf::from(format!("/{directory}")))
}

pub(super) fn parent(path: &Path) -> Path {
    let parts: Vec<_> = path.parts().collect();
    Path::from_iter(parts[..parts.len().saturating_sub(1)].iter().cloned())
}

/// What is there that the write has not left itself.
async fn existing(store: &dyn ObjectStore, target: &Target) -> Result<Vec<Path>> {
    let path = target.url.prefix();
    let existing = match target.single_file {
        true => match store.head(path).await {
            Ok(meta) => vec![meta.location],
            Err(object_store::Error::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(e.into()),
        },
        false => visible_files(store, path).await?,
    };
    Ok(existing.into_iter().filter(|path| !target.has_left(path)).collect())
}

/// The numbers of the next files in each directory, behind those that are there if the write appends.
fn next_numbers(target: &Target, existing: &[Path]) -> HashMap<Path, usize> {
    let mut numbers: HashMap<Path, usize> = HashMap::new();
    if target.mode == SaveMode::Append {
        // Those of a write with a name count with those of the others.
        let kinds = [&target.names, &FileNames::of_parts(false), &FileNames::of_parts(true)];
        let number = |path: &Path| kinds.iter().find_map(|names| names.number_in(path.filename()?));
        for (path, number) in existing.iter().filter_map(|path| Some((path, number(path)?))) {
            let next = numbers.entry(parent(path)).or_default();
            *next = (*next).max(number + 1);
        }
    }
    numbers
}
