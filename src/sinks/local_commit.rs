//! The commit of a write to a local directory: files are renamed to their places, and what is about to be done is
//! written down before, for whoever comes next should the process die meanwhile.

use std::collections::HashMap;
use std::path::{Path as FilePath, PathBuf};

use datafusion::common::{Result, exec_datafusion_err, internal_err};
use object_store::ObjectStoreExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use super::area::StagingDirectory;
use super::save_mode::SaveMode;
use super::staging::{GONE, PREFIX, SET_ASIDE, Staged, Staging, WrittenFile, parent};
use crate::disk::{CommitRecord, Ended, end_left};

/// What was done about writes whose processes have died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Commits that had begun, and were finished.
    pub finished: usize,
    /// Files that came to their places for that.
    pub files: usize,
    /// Writes that had not come to their commit, whose files were removed.
    pub removed: usize,
}

/// Ends the writes to a directory whose processes have died: a commit that had begun is finished, and of other writes
/// what they have staged is removed. The next write to the directory does the same.
///
/// # Errors
///
/// Where there is no such directory.
pub fn repair(directory: impl AsRef<FilePath>) -> std::io::Result<Repaired> {
    end_writes(directory.as_ref(), false)
}

/// The same, for a process that may be the only one which commits.
pub(super) fn end_writes(directory: &FilePath, is_alone: bool) -> std::io::Result<Repaired> {
    let mut repaired = Repaired::default();
    for entry in std::fs::read_dir(directory)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(PREFIX) || name.ends_with(SET_ASIDE) {
            continue;
        }
        match end_left(&entry.path(), is_alone) {
            Ended::Finished(files) => {
                repaired.finished += 1;
                repaired.files += files;
            }
            Ended::Removed if !name.ends_with(GONE) => repaired.removed += 1,
            Ended::Removed | Ended::Left => {}
        }
    }
    Ok(repaired)
}

/// The numbers of the next files in each directory.
type Numbers = HashMap<Path, usize>;

/// A staged file, and where it goes.
struct Place {
    name: String,
    rows: usize,
    bytes: u64,
    to: Path,
}

impl Staging {
    /// Sets old files aside, puts the new ones in place, and removes the old ones; where that fails, all is as before.
    pub(super) async fn publish_staged(
        &self,
        staged: &StagingDirectory,
        old: &[&Path],
        files: Vec<Staged>,
    ) -> Result<Vec<WrittenFile>> {
        let (places, mut numbers) = self.places(staged, old, files)?;
        let cannot_note = |e| exec_datafusion_err!("cannot write to '{}': {e}", staged.path().display());
        // One file comes to its place at once.
        if places.len() + old.len() > 1 {
            self.record(&places, old)?.write(staged.path()).map_err(cannot_note)?;
        }
        let (mut moved, mut published) = (Vec::new(), Vec::new());
        let replaced = self.replace(old, &places, &mut numbers, &mut moved, &mut published).await;
        if replaced.is_err() {
            CommitRecord::forget(staged.path()).map_err(cannot_note)?;
            for path in &published {
                self.store.delete(path).await?;
            }
            for (from, to) in &moved {
                self.store.rename(to, from).await?;
            }
            return replaced;
        }
        for (_, path) in &moved {
            self.store.delete(path).await?;
        }
        CommitRecord::forget(staged.path()).map_err(cannot_note)?;
        replaced
    }

    /// Where files go, numbered in their order, and the numbers of those behind them.
    fn places(&self, staged: &StagingDirectory, old: &[&Path], files: Vec<Staged>) -> Result<(Vec<Place>, Numbers)> {
        let mut numbers = self.next_numbers.clone();
        let mut places = Vec::new();
        for file in files {
            let (name, bytes) = found(staged, &file)?;
            let rows = file.rows;
            if self.target.single_file {
                places.push(Place { name, rows, bytes, to: self.target.url.prefix().clone() });
                continue;
            }
            let directory: Path = self.directory.parts().chain(file.directory.parts()).collect();
            let mut to = self.next_place(&directory, &mut numbers);
            // Somebody else has appended meanwhile.
            while self.target.mode == SaveMode::Append && !old.contains(&&to) && local_path(&to)?.exists() {
                to = self.next_place(&directory, &mut numbers);
            }
            places.push(Place { name, rows, bytes, to });
        }
        Ok((places, numbers))
    }

    fn next_place(&self, directory: &Path, numbers: &mut Numbers) -> Path {
        let next = numbers.entry(directory.clone()).or_default();
        *next += 1;
        directory.clone().join(self.target.names.name(&[*next - 1], &self.write, &self.target.extension))
    }

    /// What is about to be done.
    fn record(&self, places: &[Place], old: &[&Path]) -> Result<CommitRecord> {
        let root = local_path(&self.directory)?;
        let below = |path: &Path| match local_path(path)?.strip_prefix(&root) {
            Ok(below) => Ok(below.to_owned()),
            Err(_) => internal_err!("'{path}' is not in '{}'", root.display()),
        };
        let places = places.iter().map(|place| Ok((PathBuf::from(&place.name), below(&place.to)?)));
        let old = old.iter().map(|path| below(path));
        Ok(CommitRecord {
            places: places.collect::<Result<_>>()?,
            old: old.collect::<Result<_>>()?,
            set_aside: below(&self.set_aside)?,
        })
    }

    /// Sets old files aside and puts the new ones in place, noting each step so that it can be undone.
    async fn replace(
        &self,
        old: &[&Path],
        places: &[Place],
        numbers: &mut Numbers,
        moved: &mut Vec<(Path, Path)>,
        published: &mut Vec<Path>,
    ) -> Result<Vec<WrittenFile>> {
        for (number, path) in old.iter().enumerate() {
            let aside = self.set_aside.clone().join(format!("old-{number}"));
            self.store.rename(path, &aside).await?;
            moved.push(((*path).clone(), aside));
        }
        let mut written = Vec::new();
        for Place { name, rows, bytes, to } in places {
            let from = self.staged.clone().join(name.as_str());
            if self.target.single_file {
                self.store.rename(&from, to).await?;
                written.push(self.written(to, *rows, *bytes));
                continue;
            }
            let mut to = to.clone();
            while let Err(e) = self.store.rename_if_not_exists(&from, &to).await {
                match e {
                    // Somebody else appends at the same time, who does not wait for others.
                    object_store::Error::AlreadyExists { .. } if self.target.mode == SaveMode::Append => {
                        to = self.next_place(&parent(&to), numbers);
                    }
                    e => return Err(e.into()),
                }
            }
            written.push(self.written(&to, *rows, *bytes));
            published.push(to);
        }
        Ok(written)
    }
}

/// A path on the disks of this machine.
fn local_path(path: &Path) -> object_store::Result<PathBuf> {
    LocalFileSystem::new().path_to_filesystem(path)
}

/// The name of a staged file and its bytes. Fails where another process has written more or less than there is.
fn found(staged: &StagingDirectory, file: &Staged) -> Result<(String, u64)> {
    let name = file.elsewhere.as_ref().map_or_else(|| staged.name_of(&file.id), |other| other.name.clone());
    let path = staged.path().join(&name);
    let bytes = std::fs::metadata(&path).map_err(|e| exec_datafusion_err!("'{}' is not there: {e}", path.display()))?;
    match file.elsewhere.as_ref().filter(|other| other.bytes != bytes.len()) {
        Some(other) => {
            internal_err!("'{}' was written with {} bytes and has {}", path.display(), other.bytes, bytes.len())
        }
        None => Ok((name, bytes.len())),
    }
}
