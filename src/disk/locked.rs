//! Directories of temporary files with a locked file in them. The operating system drops the lock however a process
//! dies, so others know which directories they may remove, without looking at ages or process ids.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file that a living process holds locked.
const LOCK: &str = "lock";
/// Its name before that.
const UNLOCKED: &str = "lock.new";
/// A directory that has no lock for longer was left by a process that died while it made it.
const CREATED_WITHIN: Duration = Duration::from_secs(60);

/// A directory of this process.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    path: PathBuf,
    _lock: File,
}

impl LockedDirectory {
    /// Makes the directory `name` in `root`, under the name `unfinished` at first: whoever sees the real one finds it
    /// locked.
    pub(crate) fn create(root: &Path, name: &str, unfinished: &str) -> io::Result<Self> {
        let hidden = root.join(unfinished);
        fs::create_dir_all(&hidden)?;
        // The file gets its name when it is locked: whoever sees it finds it so.
        let unlocked = hidden.join(UNLOCKED);
        let lock = File::create_new(&unlocked)?;
        lock.lock()?;
        fs::rename(unlocked, hidden.join(LOCK))?;
        let path = root.join(name);
        fs::rename(&hidden, &path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether a directory has a lock that nobody holds: its process has died.
pub(crate) fn was_left(directory: &Path) -> bool {
    File::options().write(true).open(directory.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
}

/// Whether a directory was left, or one that has no lock was begun so long ago that nobody is at it.
pub(crate) fn was_left_or_begun_long_ago(directory: &Path) -> bool {
    match directory.join(LOCK).exists() {
        true => was_left(directory),
        false => is_old(directory),
    }
}

fn is_old(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > CREATED_WITHIN))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_what_nobody_holds_was_left() {
        let root = tempfile::tempdir().unwrap();
        let held = LockedDirectory::create(root.path(), "held", ".held").unwrap();
        assert!(!was_left(held.path()) && !was_left_or_begun_long_ago(held.path()));
        let path = held.path().to_owned();
        drop(held);
        assert!(was_left(&path) && was_left_or_begun_long_ago(&path));
        let begun = root.path().join("begun");
        fs::create_dir(&begun).unwrap();
        assert!(!was_left(&begun) && !was_left_or_begun_long_ago(&begun));
        File::open(&begun).unwrap().set_modified(SystemTime::now() - 2 * CREATED_WITHIN).unwrap();
        assert!(!was_left(&begun) && was_left_or_begun_long_ago(&begun));
    }
}
