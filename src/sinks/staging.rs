//! The commit protocol: files are written into a hidden directory beside their place and renamed when all are complete.
//!
//! A reader never sees part of a file, and sees none of the files before all of them are written. Renaming many files is
//! not atomic: a process that is killed in that moment leaves some of them, and those that an overwrite replaces in a
//! `.blockyard-*-old` directory. What a killed process had staged stays in a `.blockyard-*` directory. Readers ignore both.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::listing::ListingTableUrl;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::SaveMode;
use crate::block::TaskId;
use crate::disk::Pace;

/// Where a write goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Directory or file.
    pub(crate) url: ListingTableUrl,
    /// Ending of file names, like `csv.gz`.
    pub(crate) extension: String,
    /// Whether the URL names one file instead of a directory.
    pub(crate) single_file: bool,
    /// What happens to existing output.
    pub(crate) mode: SaveMode,
}

/// One write that has not been committed. Dropping it removes what was staged on local disks.
#[derive(Debug)]
pub(crate) struct Staging {
    store: Arc<dyn ObjectStore>,
    target: Target,
    /// The directory of the finished files.
    directory: Path,
    staged: Path,
    /// Where old files wait until the new ones are in place. It is never removed with files in it: a commit that is cut
    /// short must not take them along.
    set_aside: Path,
    existing: Vec<Path>,
    /// Whether the directory was there before.
    was_there: bool,
    pace: Arc<Pace>,
}

impl Staging {
    /// Prepares a write. `None` when the mode says to leave what is there; fails when it says that nothing may be there.
    pub(crate) async fn begin(store: Arc<dyn ObjectStore>, target: Target) -> Result<Option<Self>> {
        let path = target.url.prefix().clone();
        let existing = match target.single_file {
            true => match store.head(&path).await {
                Ok(meta) => vec![meta.location],
                Err(object_store::Error::NotFound { .. }) => Vec::new(),
                Err(e) => return Err(e.into()),
            },
            false => visible_files(store.as_ref(), &path).await?,
        };
        match target.mode {
            _ if existing.is_empty() => {}
            SaveMode::Ignore => return Ok(None),
            SaveMode::Error => {
                return exec_err!(
                    "output '{}' already exists ({} files) and the mode is error; use append, overwrite or ignore",
                    target.url,
                    existing.len()
                );
            }
            SaveMode::Append if target.single_file => {
                return exec_err!("cannot append to the single file '{}'; use overwrite, or a directory", target.url);
            }
            SaveMode::Append | SaveMode::Overwrite => {}
        }
        let directory = match target.single_file {
            true => parent(&path),
            false => path,
        };
        let write = uuid::Uuid::new_v4().simple();
        let staged = directory.clone().join(format!(".blockyard-{write}"));
        let set_aside = directory.clone().join(format!(".blockyard-{write}-old"));
        let was_there = target.url.scheme() != "file" || PathBuf::from(format!("/{directory}")).exists();
        Ok(Some(Self { store, target, directory, staged, set_aside, existing, was_there, pace: Arc::default() }))
    }

    /// Where the block `id` is to be written.
    pub(crate) fn path_of(&self, id: &TaskId) -> Path {
        self.staged.clone().join(format!("{id}.{}", self.target.extension))
    }

    /// The same as a file, on local disks.
    pub(crate) fn file_of(&self, id: &TaskId) -> Option<PathBuf> {
        (self.target.url.scheme() == "file").then(|| PathBuf::from(format!("/{}", self.path_of(id))))
    }

    /// How fast local files are written.
    pub(crate) fn pace(&self) -> &Arc<Pace> {
        &self.pace
    }

    /// Where the blocks are written to.
    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Makes the staged files visible, numbered in the order of their ids.
    pub(crate) async fn commit(&self, mut ids: Vec<TaskId>) -> Result<()> {
        ids.sort();
        let overwrites = self.target.mode == SaveMode::Overwrite && !self.target.single_file;
        let old = if overwrites { &self.existing[..] } else { &[] };
        let mut moved = Vec::new();
        let mut published = Vec::new();
        if let Err(e) = self.replace(old, ids, &mut moved, &mut published).await {
            for path in &published {
                self.store.delete(path).await?;
            }
            for (from, to) in &moved {
                self.store.rename(to, from).await?;
            }
            return Err(e);
        }
        for (_, path) in &moved {
            self.store.delete(path).await?;
        }
        Ok(())
    }

    /// Sets old files aside and puts the new ones in place, noting each step so that it can be undone.
    async fn replace(
        &self,
        old: &[Path],
        ids: Vec<TaskId>,
        moved: &mut Vec<(Path, Path)>,
        published: &mut Vec<Path>,
    ) -> Result<()> {
        for (number, path) in old.iter().enumerate() {
            let aside = self.set_aside.clone().join(format!("old-{number}"));
            self.store.rename(path, &aside).await?;
            moved.push((path.clone(), aside));
        }
        let mut next = match self.target.mode {
            SaveMode::Append => self.existing.iter().filter_map(part_number).max().map_or(0, |n| n + 1),
            _ => 0,
        };
        for id in ids {
            let from = self.path_of(&id);
            if self.target.single_file {
                self.store.rename(&from, self.target.url.prefix()).await?;
                continue;
            }
            loop {
                let to = self.directory.clone().join(format!("part-{next:06}.{}", self.target.extension));
                next += 1;
                match self.store.rename_if_not_exists(&from, &to).await {
                    Ok(()) => {
                        published.push(to);
                        break;
                    }
                    // Somebody else appends at the same time.
                    Err(object_store::Error::AlreadyExists { .. }) if self.target.mode == SaveMode::Append => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    /// Removes what was staged.
    pub(crate) async fn abort(&self) -> Result<()> {
        let staged: Vec<_> = self.store.list(Some(&self.staged)).map_ok(|meta| meta.location).try_collect().await?;
        for path in staged {
            self.store.delete(&path).await?;
        }
        Ok(())
    }

    fn local_directory(&self) -> Option<PathBuf> {
        (self.target.url.scheme() == "file").then(|| PathBuf::from(format!("/{}", self.staged)))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(directory) = self.local_directory() {
            // After a commit the directory is empty; after a failure it is not. Nothing more can be done if this fails.
            let _removed = std::fs::remove_dir_all(directory);
            // This removes only an empty directory.
            let _removed = std::fs::remove_dir(format!("/{}", self.set_aside));
            if !self.was_there {
                // Only an empty directory can be removed this way: nothing was written.
                let _removed = std::fs::remove_dir(format!("/{}", self.directory));
            }
        }
    }
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

/// Whether no part of a path below `directory` begins with a dot or an underscore.
pub(crate) fn is_visible(directory: &Path, path: &Path) -> bool {
    let mut below = path.prefix_match(directory).into_iter().flatten();
    !below.any(|part| part.as_ref().starts_with(['.', '_']))
}

fn parent(path: &Path) -> Path {
    let parts: Vec<_> = path.parts().collect();
    Path::from_iter(parts[..parts.len().saturating_sub(1)].iter().cloned())
}

fn part_number(path: &Path) -> Option<usize> {
    path.filename()?.strip_prefix("part-")?.split('.').next()?.parse().ok()
}
