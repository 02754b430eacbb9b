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

use serde::{Deserialize, Serialize};

use super::was_left_or_begun_long_ago;

/// How it is called in the directory of a write, and before it is complete.
const RECORD: &str = "commit.json";
const INCOMPLETE: &str = "commit.json.new";

/// What a commit is about to do. Paths are below the directory that the hidden one of the write is in.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommitRecord {
    /// Files in the directory of the write, and where they go.
    pub(crate) places: Vec<(PathBuf, PathBuf)>,
    /// Files that go, if no other comes to their places.
    pub(crate) old: Vec<PathBuf>,
    /// Where such files are meanwhile.
    pub(crate) set_aside: PathBuf,
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

    /// Removes it: the commit is done, or is being undone.
    pub(crate) fn forget(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(RECORD)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn read(directory: &Path) -> Option<Self> {
        let record: Self = serde_json::from_slice(&fs::read(directory.join(RECORD)).ok()?).ok()?;
        let plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let paths =
            record.places.iter().flat_map(|(from, to)| [from, to]).chain(&record.old).chain([&record.set_aside]);
        // It may be in a directory that others write to, too.
        let are_inside = paths.into_iter().all(|path| plain(path));
        are_inside.then_some(record)
    }
}

/// What became of the directory of a write whose process has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its commit had begun, and was finished: so many files came to their places now.
    Finished(usize),
    /// It had not begun. What was written is gone.
    Removed,
    /// It is not to be touched: the process lives, others commit now, or something failed.
    Left,
}

/// Ends a write whose process has died, in its directory. Others may not commit beside it: `is_alone` says that this
/// process has seen to that.
pub(crate) fn end_left(directory: &Path, is_alone: bool) -> Ended {
    let Some(target) = directory.parent().filter(|_| was_left_or_begun_long_ago(directory)) else { return Ended::Left };
    let _alone = match File::open(target).map(|target| (target.try_lock(), target)) {
        _ if is_alone => None,
        Ok((Ok(()), target)) => Some(target),
        Ok((Err(TryLockError::Error(e)), _)) if e.kind() == io::ErrorKind::Unsupported => None,
        _ => return Ended::Left,
    };
    // While it was waited for, another process may have ended it.
    if !was_left_or_begun_long_ago(directory) {
        return Ended::Left;
    }
    let finished = CommitRecord::read(directory).map(|record| record.finish(directory, target));
    let removed = |ended| if fs::remove_dir_all(directory).is_ok() { ended } else { Ended::Left };
    match finished {
        None => removed(Ended::Removed),
        Some(Ok(files)) => removed(Ended::Finished(files)),
        Some(Err(_)) => Ended::Left,
    }
}

impl CommitRecord {
    /// Does what is left to be done; returns how many files came to their places.
    fn finish(&self, directory: &Path, target: &Path) -> io::Result<usize> {
        let mut files = 0;
        for (from, to) in &self.places {
            let (from, place) = (directory.join(from), target.join(to));
            if from.exists() {
                place.parent().map_or(Ok(()), fs::create_dir_all)?;
                move_to(&from, &place, self.old.contains(to))?;
                files += 1;
            }
        }
        for old in self.old.iter().filter(|old| !self.places.iter().any(|(_, to)| to == *old)) {
            remove_if_there(&target.join(old))?;
        }
        match fs::remove_dir_all(target.join(&self.set_aside)) {
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
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                free.set_file_name(format!("{stem}-{number}{ending}"));
            }
            Err(e) => return Err(e),
        }
    }
    remove_if_there(from)
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
            old: ["a", "b", "c"].map(path).to_vec(),
            set_aside: PathBuf::from(".w-old"),
        };
        if is_recorded {
            record.write(&directory).unwrap();
        }
        let aside = target.join(".w-old");
        let mut done = 0..steps;
        for old in &record.old {
            if done.next().is_some() {
                fs::create_dir_all(&aside).unwrap();
                fs::rename(target.join(old), aside.join(old)).unwrap();
            }
        }
        for (from, to) in &record.places {
            if done.next().is_some() {
                fs::create_dir_all(target.join(to).parent().unwrap()).unwrap();
                fs::rename(directory.join(from), target.join(to)).unwrap();
            }
        }
        for old in &record.old {
            if done.next().is_some() {
                fs::remove_file(aside.join(old)).unwrap();
            }
        }
        directory
    }

    #[test]
    fn a_commit_that_was_cut_short_anywhere_is_finished() {
        let all =
            [("a.csv", "0"), ("e.csv", "2"), ("x/d.csv", "1")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        for steps in 0..10 {
            let target = tempfile::tempdir().unwrap();
            let directory = cut_short(target.path(), steps, true);
            assert_eq!(end_left(&directory, false), Ended::Finished(6usize.saturating_sub(steps.max(3))), "{steps}");
            assert_eq!(files(target.path()), BTreeMap::from(all.clone()), "{steps}");
            assert_eq!(end_left(&directory, false), Ended::Left);
        }
    }

    #[test]
    fn without_a_record_nothing_comes_to_its_place() {
        let target = tempfile::tempdir().unwrap();
        let directory = cut_short(target.path(), 0, false);
        fs::write(directory.join(INCOMPLETE), "{").unwrap();
        assert_eq!(end_left(&directory, false), Ended::Removed);
        assert_eq!(files(target.path()).into_values().collect::<Vec<_>>(), ["old"; 3]);
    }

    #[test]
    fn files_of_others_stay_and_paths_stay_inside() {
        let target = tempfile::tempdir().unwrap();
        let directory = cut_short(target.path(), 4, true);
        fs::write(target.path().join("e.csv"), "of another").unwrap();
        assert_eq!(end_left(&directory, false), Ended::Finished(2));
        let found = files(target.path());
        assert_eq!((found["e.csv"].as_str(), found["e-1.csv"].as_str()), ("of another", "2"));

        let target = tempfile::tempdir().unwrap();
        let held = LockedDirectory::create(target.path(), ".w", ".w.new").unwrap();
        let places = vec![(PathBuf::from("0.csv"), PathBuf::from("../outside.csv"))];
        CommitRecord { places, ..Default::default() }.write(held.path()).unwrap();
        let directory = held.path().to_owned();
        assert_eq!(end_left(&directory, false), Ended::Left, "its process lives");
        drop(held);
        assert_eq!(end_left(&directory, true), Ended::Removed);
        // Others commit now.
        let directory = cut_short(target.path(), 0, true);
        let committing = File::open(target.path()).unwrap();
        committing.lock().unwrap();
        assert_eq!(end_left(&directory, false), Ended::Left);
        assert_eq!(end_left(&directory, true), Ended::Finished(3));
    }
}
