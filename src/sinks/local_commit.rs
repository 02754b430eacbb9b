//! The commit of a write to a local directory: files are renamed to their places, and what is about to be done is
//! written down before, for whoever comes next should the process die meanwhile.

use std::collections::HashMap;
use std::path::PathBuf;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, internal_err};
use object_store::ObjectStoreExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use super::area::StagingDirectory;
use super::save_mode::SaveMode;
use super::staged::{Staged, WrittenFile};
use super::staging::{Staging, parent};
use crate::disk::{CommitRecord, OldFile};

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
    /// None are put where somebody else has put some meanwhile, and these are to be left alone.
    /// If that fails too, what is noted stays, for whoever comes next.
    pub(super) async fn publish_staged(
        &self,
        staged: &StagingDirectory,
        old: &[Path],
        files: Vec<Staged>,
    ) -> Result<Option<Vec<WrittenFile>>> {
        let (places, mut numbers) = self.places(staged, old, files)?;
        let cannot_note = |e| exec_datafusion_err!("cannot write to '{}': {e}", staged.path().display());
        // One file comes to its place at once.
        if places.len() > 1 || !old.is_empty() {
            self.record(&places, old)?.write(staged.path()).map_err(cannot_note)?;
        }
        let (mut moved, mut published) = (Vec::new(), Vec::new());
        let written = match self.replace(old, &places, &mut numbers, &mut moved, &mut published).await {
            Ok(written) => {
                for (_, aside) in &moved {
                    self.store.delete(aside).await?;
                }
                Ok(Some(written))
            }
            Err(e) => {
                // Back to where they came from: should the process die now, what is noted can still be done.
                for (from, to) in published.iter().rev().chain(moved.iter().rev()) {
                    self.store.rename(to, from).await?;
                }
                self.beside_another(e)
            }
        };
        CommitRecord::forget(staged.path()).map_err(cannot_note)?;
        written
    }

    /// What becomes of a write that another one was faster than: none, where it is to leave alone what is there.
    fn beside_another(&self, error: DataFusionError) -> Result<Option<Vec<WrittenFile>>> {
        let DataFusionError::ObjectStore(e) = &error else { return Err(error) };
        let object_store::Error::AlreadyExists { path, .. } = e.as_ref() else { return Err(error) };
        match self.target.mode {
            SaveMode::Ignore => Ok(None),
            mode => exec_err!("'{path}' already exists, which another write has put there, and the mode is {mode}"),
        }
    }

    /// Where files go, numbered in their order, and the numbers of those behind them.
    fn places(&self, staged: &StagingDirectory, old: &[Path], files: Vec<Staged>) -> Result<(Vec<Place>, Numbers)> {
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
            while self.target.mode == SaveMode::Append && !old.contains(&to) && local_path(&to)?.exists() {
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
    fn record(&self, places: &[Place], old: &[Path]) -> Result<CommitRecord> {
        let root = local_path(&self.directory)?;
        let below = |path: &Path| match local_path(path)?.strip_prefix(&root) {
            Ok(below) => Ok(below.to_owned()),
            Err(_) => internal_err!("'{path}' is not in '{}'", root.display()),
        };
        let places = places.iter().map(|place| Ok((PathBuf::from(&place.name), below(&place.to)?)));
        let old = old.iter().map(|path| Ok(OldFile::of(&local_path(path)?, below(path)?)?));
        Ok(CommitRecord { places: places.collect::<Result<_>>()?, old: old.collect::<Result<_>>()? })
    }

    /// Sets old files aside and puts the new ones in place, noting each step so that it can be undone.
    async fn replace(
        &self,
        old: &[Path],
        places: &[Place],
        numbers: &mut Numbers,
        moved: &mut Vec<(Path, Path)>,
        published: &mut Vec<(Path, Path)>,
    ) -> Result<Vec<WrittenFile>> {
        for (number, path) in old.iter().enumerate() {
            let aside = self.set_aside.clone().join(format!("old-{number}"));
            self.store.rename(path, &aside).await?;
            moved.push((path.clone(), aside));
        }
        let mut written = Vec::new();
        for Place { name, rows, bytes, to } in places {
            let from = self.staged.clone().join(name.as_str());
            if self.target.single_file {
                match self.target.replaces() {
                    true => self.store.rename(&from, to).await?,
                    false => self.store.rename_if_not_exists(&from, to).await?,
                }
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
            published.push((from, to));
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
