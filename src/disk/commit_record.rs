//! [`CommitRecord`]: what a commit is about to do, written down before it begins.
//!
//! Files are renamed one by one, so a process that dies in that moment leaves some in their places and others not.
//! Whoever comes next to the directory goes on where the record says, or does nothing where there is none:
//!
//! ```text
//! .blockyard-7/  lock  commit.json  0.parquet  1.parquet        part-000000.parquet of before
//!                                   1.parquet                   part-000000.parquet (0.parquet)
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::was_left_or_begun_long_ago;

/// How it is called in the directory of a write, and before it is complete.
const RECORD: &str = "commit.json";
const INCOMPLETE: &str = "commit.json.new";
/// How the directory of old files ends, which is called like that of the write otherwise.
pub(crate) const SET_ASIDE: &str = "-old";
/// A file that is made to see whose files this process makes.
const PROBE: &str = "owner";

/// What a commit is about to do. Paths are below the directory that the hidden one of the write is in.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommitRecord {
    /// Files in the directory of the write, and where they go.
    pub(crate) places: Vec<(PathBuf, PathBuf)>,
    /// Files that go, if no other comes to their places. Meanwhile they are in a directory beside that of the write.
    pub(crate) old: Vec<OldFile>,
}

/// A file that goes, as it was then: what somebody else has put in its place since stays.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OldFile {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl OldFile {
    /// A file, and how it is called in records.
    pub(crate) fn of(file: &Path, path: PathBuf) -> io::Result<Self> {
        let metadata = fs::metadata(file)?;
        Ok(Self { path, bytes: metadata.len(), modified: metadata.modified().ok() })
    }

    fn is(&self, file: &Path) -> bool {
        fs::metadata(file).is_ok_and(|found| found.len() == self.bytes && found.modified().ok() == self.modified)
    }
}

impl CommitRecord {
    /// Writes it to the directory of a write.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let incomplete = directory.join(INCOMPLETE);
        let mut file = File::create(&incomplete)?;
        serde_json::to_writer(&mut file, self)?;
        file.sync_all()?;
        fs::rename(incomplete, directory.join(RECORD))
    }

    /// Removes it: the commit is done, or undone.
    pub(crate) fn forget(directory: &Path) -> io::Result<()> {
        remove_if_there(&directory.join(RECORD))
    }

    /// Whether there is one, or it cannot be told.
    pub(crate) fn is_in(directory: &Path) -> bool {
        directory.join(RECORD).try_exists().unwrap_or(true)
    }

    /// That in a directory, if there is one. Fails where it cannot be read, or says what none of ours says.
    fn read(directory: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(directory.join(RECORD)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let record: Self = serde_json::from_slice(&text)?;
        let parts =
            |path: &Path| path.components().map(|part| matches!(part, Component::Normal(_))).collect::<Vec<_>>();
        let is_name = |path: &PathBuf| parts(path) == [true];
        let is_inside = |path: &PathBuf| !path.as_os_str().is_empty() && parts(path).into_iter().all(|part| part);
        let places = record.places.iter().all(|(from, to)| is_name(from) && is_inside(to));
        match places && record.old.iter().all(|old| is_inside(&old.path)) {
            true => Ok(Some(record)),
            false => Err(io::Error::other("its record names files that are not below it")),
        }
    }
}

/// What became of the directory of a write whose process has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its commit had begun, and was finished: so many files came to their places now.
    Finished(usize),
    /// It had not begun. What was written is gone.
    Removed,
    /// It is not to be touched: the process lives, others commit now, or it is of another user.
    Left,
}

/// Removes the directory of a write whose process has died before its commit.
pub(crate) fn remove_left(directory: &Path) {
    if was_left_or_begun_long_ago(directory) && !CommitRecord::is_in(directory) {
        let _removed = fs::remove_dir_all(directory);
    }
}

/// Ends a write whose process has died, in its directory. Others may not commit beside it: `is_alone` says that this
/// process has seen to that. Fails where a commit cannot be finished.
pub(crate) fn end_left(directory: &Path, is_alone: bool) -> io::Result<Ended> {
    let Some(target) = directory.parent().filter(|_| was_left_or_begun_long_ago(directory)) else {
        return Ok(Ended::Left);
    };
    let _alone = match File::open(target).map(|target| (target.try_lock(), target)) {
        _ if is_alone => None,
        Ok((Ok(()), target)) => Some(target),
        Ok((Err(TryLockError::Error(e)), _)) if e.kind() == io::ErrorKind::Unsupported => None,
        _ => return Ok(Ended::Left),
    };
    // While it was waited for, another process may have ended it.
    if !was_left_or_begun_long_ago(directory) {
        return Ok(Ended::Left);
    }
    if !CommitRecord::is_in(directory) {
        return Ok(if fs::remove_dir_all(directory).is_ok() { Ended::Removed } else { Ended::Left });
    }
    if !is_own(directory) {
        return Ok(Ended::Left);
    }
    let files = match CommitRecord::read(directory)? {
        Some(record) => record.finish(directory, target)?,
        None => return Ok(Ended::Left),
    };
    fs::remove_dir_all(directory)?;
    Ok(Ended::Finished(files))
}

/// Whether the directory of a write and the record in it belong to whoever runs this process: others could have any
/// file moved or removed otherwise.
fn is_own(directory: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let probe = directory.join(PROBE);
        let own = File::create(&probe).and_then(|file| file.metadata()).map(|metadata| metadata.uid());
        let _removed = fs::remove_file(&probe);
        let owner = |path: &Path| fs::symlink_metadata(path).map(|found| (found.is_symlink(), found.uid())).ok();
        own.is_ok_and(|own| [directory, &directory.join(RECORD)].map(owner) == [Some((false, own)); 2])
    }
    #[cfg(not(unix))]
    {
        let _any = directory;
        true
    }
}

impl CommitRecord {
    /// Does what is left to be done; returns how many files came to their places.
    fn finish(&self, directory: &Path, target: &Path) -> io::Result<usize> {
        let (root, mut files) = (target.canonicalize()?, 0);
        for (from, to) in &self.places {
            let (from, place) = (directory.join(from), target.join(to));
            if from.try_exists()? {
                let parent = place.parent().unwrap_or(target);
                fs::create_dir_all(parent)?;
                if !parent.canonicalize()?.starts_with(&root) {
                    return Err(io::Error::other(format!("'{}' is elsewhere", parent.display())));
                }
                let replaces = self.old.iter().any(|old| old.path == *to && old.is(&place));
                move_to(&from, &place, replaces)?;
                files += 1;
            }
        }
        for old in self.old.iter().filter(|old| !self.places.iter().any(|(_, to)| *to == old.path)) {
            if old.is(&target.join(&old.path)) {
                remove_if_there(&target.join(&old.path))?;
            }
        }
        let mut set_aside = directory.as_os_str().to_owned();
        set_aside.push(SET_ASIDE);
        match fs::remove_dir_all(&set_aside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        Self::forget(directory)?;
        Ok(files)
    }
}

/// Moves a file to its place. What somebody else has put there stays unless it is to be replaced: then the file gets
/// another name beside it.
fn move_to(from: &Path, place: &Path, replaces: bool) -> io::Result<()> {
    if replaces {
        return fs::rename(from, place);
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (stem, ending) = name.split_once('.').map_or((name.as_str(), ""), |(stem, _)| (stem, &name[stem.len()..]));
    let mut free = place.to_owned();
    for number in 1.. {
        match fs::hard_link(from, &free) {
            Ok(()) => break,
            // It was there, and only its old name was not gone.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_same(from, &free) => break,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                free.set_file_name(format!("{stem}-{number}{ending}"));
            }
            Err(e) => return Err(e),
        }
    }
    remove_if_there(from)
}

/// Whether two names are of one file.
fn is_same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        file(one).is_some() && file(one) == file(other)
    }
    #[cfg(not(unix))]
    {
        let _two = (one, other);
        false
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::LockedDirectory;
    use super::*;
    use std::collections::BTreeMap;

    /// The files of a directory that are not hidden, and what is in them.
    fn files(directory: &Path) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            match entry.path().is_dir() {
                true => {
                    found.extend(files(&entry.path()).into_iter().map(|(file, text)| (format!("{name}/{file}"), text)))
                }
                false => drop(found.insert(name, fs::read_to_string(entry.path()).unwrap())),
            }
        }
        found
    }

    /// An overwrite of `a`, `b` and `c` by `a`, `x/d` and `e`, of which so many steps have been done.
    fn cut_short(target: &Path, steps: usize, is_recorded: bool) -> PathBuf {
        for name in ["a", "b", "c"] {
            fs::write(target.join(format!("{name}.csv")), "old").unwrap();
        }
        let directory = LockedDirectory::create(target, ".w", ".w.new").unwrap().path().to_owned();
        for number in 0..3 {
            fs::write(directory.join(format!("{number}.csv")), format!("{number}")).unwrap();
        }
        let path = |name: &str| PathBuf::from(format!("{name}.csv"));
        let record = CommitRecord {
            places: vec![(path("0"), path("a")), (path("1"), path("x/d")), (path("2"), path("e"))],
            old: ["a", "b", "c"].map(|name| OldFile::of(&target.join(path(name)), path(name)).unwrap()).into(),
        };
        if is_recorded {
            record.write(&directory).unwrap();
        }
        let aside = target.join(".w-old");
        let mut done = 0..steps;
        for old in &record.old {
            if done.next().is_some() {
                fs::create_dir_all(&aside).unwrap();
                fs::rename(target.join(&old.path), aside.join(&old.path)).unwrap();
            }
        }
        for (from, to) in &record.places {
            // The name of a file is linked before the old one goes.
            if done.next().is_some() {
                fs::create_dir_all(target.join(to).parent().unwrap()).unwrap();
                fs::hard_link(directory.join(from), target.join(to)).unwrap();
            }
            if done.next().is_some() {
                fs::remove_file(directory.join(from)).unwrap();
            }
        }
        for old in &record.old {
            if done.next().is_some() {
                fs::remove_file(aside.join(&old.path)).unwrap();
            }
        }
        directory
    }

    #[test]
    fn a_commit_that_was_cut_short_anywhere_is_finished() {
        let all =
            [("a.csv", "0"), ("e.csv", "2"), ("x/d.csv", "1")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        for steps in 0..13 {
            let target = tempfile::tempdir().unwrap();
            let directory = cut_short(target.path(), steps, true);
            let left = 3 - steps.saturating_sub(3).min(6) / 2;
            assert_eq!(end_left(&directory, false).unwrap(), Ended::Finished(left), "{steps}");
            assert_eq!(files(target.path()), BTreeMap::from(all.clone()), "{steps}");
            assert_eq!(end_left(&directory, false).unwrap(), Ended::Left);
        }
    }

    #[test]
    fn without_a_record_nothing_comes_to_its_place() {
        let target = tempfile::tempdir().unwrap();
        let directory = cut_short(target.path(), 0, false);
        fs::write(directory.join(INCOMPLETE), "{").unwrap();
        assert_eq!(end_left(&directory, false).unwrap(), Ended::Removed);
        assert_eq!(files(target.path()).into_values().collect::<Vec<_>>(), ["old"; 3]);
    }

    #[test]
    fn files_of_others_stay_and_paths_stay_inside() {
        let target = tempfile::tempdir().unwrap();
        let directory = cut_short(target.path(), 0, true);
        fs::write(target.path().join("e.csv"), "of another").unwrap();
        // Later than what the record knows.
        fs::write(target.path().join("b.csv"), "of another, too").unwrap();
        remove_left(&directory);
        assert_eq!(end_left(&directory, false).unwrap(), Ended::Finished(3));
        let found = files(target.path());
        assert_eq!((found["e.csv"].as_str(), found["e-1.csv"].as_str()), ("of another", "2"));
        assert_eq!((found["b.csv"].as_str(), found.contains_key("c.csv")), ("of another, too", false));

        for (from, to) in [("0.csv", "../outside.csv"), ("0.csv", ""), ("../0.csv", "a.csv")] {
            let target = tempfile::tempdir().unwrap();
            let held = LockedDirectory::create(target.path(), ".w", ".w.new").unwrap();
            let places = vec![(PathBuf::from(from), PathBuf::from(to))];
            CommitRecord { places, ..Default::default() }.write(held.path()).unwrap();
            let directory = held.path().to_owned();
            assert_eq!(end_left(&directory, false).unwrap(), Ended::Left, "its process lives");
            drop(held);
            assert!(end_left(&directory, true).is_err() && directory.exists());
        }
        // What cannot be read is not taken for nothing.
        let target = tempfile::tempdir().unwrap();
        let directory = cut_short(target.path(), 2, true);
        fs::write(directory.join(RECORD), "{").unwrap();
        assert!(end_left(&directory, true).is_err() && directory.exists());
        // Others commit now.
        let target = tempfile::tempdir().unwrap();
        let directory = cut_short(target.path(), 0, true);
        let committing = File::open(target.path()).unwrap();
        committing.lock().unwrap();
        assert_eq!(end_left(&directory, false).unwrap(), Ended::Left);
        assert_eq!(end_left(&directory, true).unwrap(), Ended::Finished(3));
    }
}
