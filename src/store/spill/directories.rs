//! [`SpillDirectories`]: where temporary files are, how much they may take, and what dead processes left.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use datafusion::arrow::buffer::Buffer;
use datafusion::common::{DataFusionError, Result, config_datafusion_err, exec_datafusion_err, exec_err};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use super::disk::{Appends, Disk, DiskFile};
use super::local_disk::LocalDisk;
use super::sweep::{Note, PREFIX, sweep};
use crate::config::ByteSize;
use crate::disk::LockedDirectory;
use crate::error::SpillError;

/// Files of operators that are open for reading at once: a merge reads as many as it likes.
const CONCURRENT_READS: usize = 8;

/// The spill directories of a session, used in turn, under one quota. Also makes the temporary files of DataFusion's
/// operators.
pub struct SpillDirectories {
    own: Vec<OwnDirectory>,
    disk: Arc<dyn Disk>,
    next: AtomicUsize,
    used: AtomicU64,
    quota: AtomicU64,
    live: Mutex<Vec<std::sync::Weak<TempFile>>>,
    closed: RwLock<bool>,
    /// Files of operators that are read at once.
    reads: Semaphore,
}

impl fmt::Debug for SpillDirectories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpillDirectories({} used)", ByteSize(self.used_bytes() as usize))
    }
}

/// A temporary file as it stands.
#[derive(Debug, Clone)]
pub struct SpillFileInfo {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds.
    pub what: String,
    /// Bytes in it.
    pub bytes: u64,
}

impl SpillDirectories {
    /// Makes a directory in each of `roots`, or in the temporary directory of the system, and removes what dead
    /// processes left there. Fails when one cannot be used.
    ///
    /// # Errors
    ///
    /// Where one cannot be made or used.
    pub fn open(roots: &[PathBuf], quota: u64) -> Result<Self> {
        Self::on_disk(roots, quota, Arc::new(LocalDisk::default()))
    }

    pub(in crate::store) fn on_disk(roots: &[PathBuf], quota: u64, disk: Arc<dyn Disk>) -> Result<Self> {
        let system = [std::env::temp_dir()];
        let roots = if roots.is_empty() { &system } else { roots };
        let mut own = Vec::new();
        for root in roots {
            let opened = fs::create_dir_all(root).and_then(|()| {
                sweep(root);
                OwnDirectory::create(root)
            });
            own.push(opened.map_err(|e| config_datafusion_err!("cannot spill to '{}': {e}", root.display()))?);
        }
        let quota = AtomicU64::new(quota);
        Ok(Self {
            own,
            disk,
            next: AtomicUsize::new(0),
            used: AtomicU64::new(0),
            quota,
            live: Mutex::default(),
            closed: RwLock::default(),
            reads: Semaphore::new(CONCURRENT_READS),
        })
    }

    /// Bytes in all files.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The most bytes that all files together may have.
    pub fn quota(&self) -> u64 {
        self.quota.load(Relaxed)
    }

    /// Changes the quota, for running queries too.
    pub fn set_quota(&self, bytes: u64) {
        self.quota.store(bytes, Relaxed);
    }

    /// The directories of this process.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.own.iter().map(|own| own.path().to_owned()).collect()
    }

    /// The files that are there now.
    pub fn files(&self) -> Vec<SpillFileInfo> {
        let files: Vec<_> = self.live.lock().iter().filter_map(std::sync::Weak::upgrade).collect();
        let info = |file: Arc<TempFile>| SpillFileInfo {
            path: file.path.clone(),
            what: file.what.clone(),
            bytes: file.bytes.load(Relaxed),
        };
        files.into_iter().map(info).collect()
    }

    /// An empty file in the next directory. `what` says in errors and tables what it holds.
    pub(in crate::store) fn create(self: &Arc<Self>, what: &str, appends: Appends) -> Result<Arc<TempFile>> {
        self.create_besides(what, appends, &[])
    }

    /// The same in another directory than those, by their numbers, which are full.
    pub(super) fn create_besides(
        self: &Arc<Self>,
        what: &str,
        appends: Appends,
        full: &[usize],
    ) -> Result<Arc<TempFile>> {
        let closed = self.closed.read();
        if *closed {
            return exec_err!("the session has ended, and its spill directories are gone");
        }
        let number = self.next.fetch_add(1, Relaxed);
        let mut places = (0..self.own.len()).map(|step| (number + step) % self.own.len()).filter(|n| !full.contains(n));
        let (directory, path, open) = loop {
            let Some(directory) = places.next() else {
                return Err(DataFusionError::IoError(all_full()));
            };
            let path = self.own[directory].path().join(format!("{number:08}.arrow"));
            match self.disk.create(&path, appends) {
                Ok(open) => break (directory, path, open),
                // Where a disk is full, another may have room.
                Err(e) if e.kind() == io::ErrorKind::StorageFull && full.len() + 1 < self.own.len() => {}
                Err(e) => return Err(io_error(&e, &format!("cannot create {}", path.display()))),
            }
        };
        let file = Arc::new(TempFile {
            path,
            directory,
            what: what.to_owned(),
            open,
            bytes: AtomicU64::new(0),
            directories: Arc::clone(self),
        });
        let mut live = self.live.lock();
        live.retain(|file| file.strong_count() > 0);
        live.push(Arc::downgrade(&file));
        Ok(file)
    }

    /// Removes all files and directories now, although somebody may still hold them: a process that ends does not wait
    /// for its threads.
    pub fn close(&self) {
        *self.closed.write() = true;
        for directory in &self.own {
            directory.remove();
        }
    }

    /// Waits until a file may be opened to be read from, and gives the leave to.
    pub(super) async fn leave_to_read(&self) -> Result<SemaphorePermit<'_>> {
        self.reads.acquire().await.map_err(|e| exec_datafusion_err!("{e}"))
    }

    fn charge(&self, bytes: u64) -> io::Result<()> {
        let quota = self.quota();
        let within = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= quota);
        match self.used.fetch_update(Relaxed, Relaxed, within) {
            Ok(_) => Ok(()),
            Err(used) => Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "the quota of {} has no room for {} more ({} in {} files); raise blockyard.spill_quota",
                    ByteSize(quota as usize),
                    ByteSize(bytes as usize),
                    ByteSize(used as usize),
                    self.files().len()
                ),
            )),
        }
    }
}

/// A file that is removed with its last reference.
#[derive(Debug)]
pub(in crate::store) struct TempFile {
    path: PathBuf,
    /// Number of the spill directory that it is in.
    directory: usize,
    what: String,
    open: Box<dyn DiskFile>,
    bytes: AtomicU64,
    directories: Arc<SpillDirectories>,
}

impl TempFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What it is for.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// The spill directories, and the number of the one that it is in.
    pub(super) fn directory(&self) -> (&Arc<SpillDirectories>, usize) {
        (&self.directories, self.directory)
    }

    /// Nothing will be appended soon.
    pub(super) fn rest(&self) {
        self.open.rest();
    }

    /// Bytes written to it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Appends all of `parts`, one after the other, within the quota.
    pub(super) fn append(&self, parts: &[&[u8]]) -> io::Result<()> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        self.directories.charge(bytes)?;
        // What was charged stays charged until the file goes, written or not: a part of it may have been.
        self.bytes.fetch_add(bytes, Relaxed);
        self.open.append(parts)
    }

    /// Reads `length` bytes from `offset` on.
    pub(super) fn read(&self, offset: u64, length: usize) -> io::Result<Buffer> {
        self.open.read_at(offset, length)
    }

    /// The same where only errors of IO are.
    pub(super) fn io_error(&self, e: &io::Error, doing: &str) -> io::Error {
        SpillError::io(e.kind(), format!("cannot {doing} spill file {}: {e}", self.path.display()))
    }

    /// An error of this file, for people.
    pub(super) fn error(&self, e: &io::Error, doing: &str) -> DataFusionError {
        io_error(e, &format!("cannot {doing} spill file {}", self.path.display()))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        self.directories.used.fetch_sub(self.bytes(), Relaxed);
        // Somebody may have removed it already.
        let _gone = fs::remove_file(&self.path);
    }
}

/// More disk is a matter of an option where it is the quota that is used up.
fn io_error(e: &io::Error, what: &str) -> DataFusionError {
    let text = format!("{what}: {e}");
    match e.kind() {
        io::ErrorKind::QuotaExceeded => DataFusionError::ResourcesExhausted(text),
        kind => DataFusionError::IoError(SpillError::io(kind, text)),
    }
}

fn all_full() -> io::Error {
    SpillError::io(io::ErrorKind::StorageFull, "all spill directories are full".to_owned())
}

/// A directory of this process, removed with everything in it.
struct OwnDirectory(LockedDirectory);

impl OwnDirectory {
    fn create(root: &Path) -> io::Result<Self> {
        let name = Uuid::new_v4().simple().to_string();
        LockedDirectory::create(root, &format!("{PREFIX}{name}"), &format!(".{PREFIX}{name}")).map(Self)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn remove(&self) {
        // What cannot be removed now is swept by the next process.
        let _gone = fs::remove_dir_all(self.path());
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        self.remove();
    }
}

impl SpillDirectories {
    /// Notes the directory of a write that is not complete.
    pub(crate) fn note(&self, staged: &Path) -> Result<Note> {
        let own = self.own[0].path();
        Note::write(own, staged).map_err(|e| io_error(&e, &format!("cannot write to {}", own.display())))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn directories_are_used_in_turn_and_go_with_their_owner() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let roots = [one.path().to_owned(), two.path().to_owned()];
        let directories = Arc::new(SpillDirectories::open(&roots, u64::MAX).unwrap());
        let files: Vec<_> = (0..4).map(|_| directories.create("test", Appends::Any).unwrap()).collect();
        let in_first = files.iter().filter(|f| f.path().starts_with(one.path())).count();
        assert_eq!(in_first, 2);
        files[0].append(&[b"12345"]).unwrap();
        assert_eq!(directories.used_bytes(), 5);
        assert_eq!(directories.files().iter().map(|f| f.bytes).sum::<u64>(), 5);
        drop(files);
        assert_eq!(directories.used_bytes(), 0);
        drop(directories);
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_start_sweeps_what_the_dead_left_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let dead = root.path().join("blockyard-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("lock"), "").unwrap();
        fs::write(dead.join("00000001.arrow"), "left").unwrap();
        // What the dead had staged elsewhere, and what a living write stages in the same place for longer.
        let output = tempfile::tempdir().unwrap();
        let [left, held] = [".blockyard-1", ".blockyard-2"].map(|name| output.path().join(name));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("lock"), "").unwrap();
        let _held = LockedDirectory::create(output.path(), ".blockyard-2", ".blockyard-2.new").unwrap();
        for (number, noted) in [&left, &held, &output.path().to_owned()].into_iter().enumerate() {
            fs::write(dead.join(format!("staged-{number}")), noted.as_os_str().as_encoded_bytes()).unwrap();
        }
        let written = LockedDirectory::create(root.path(), ".blockyard-3", ".blockyard-3.new").unwrap();
        let set_aside = root.path().join(".blockyard-4-old");
        fs::create_dir(&set_aside).unwrap();
        let foreign = root.path().join("blockyard-not-ours");
        fs::create_dir(&foreign).unwrap();
        let [unfinished, begun] = [".blockyard-unfinished", ".blockyard-begun"].map(|name| root.path().join(name));
        fs::create_dir(&unfinished).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        for path in [&unfinished, &set_aside, &written.path().to_owned()] {
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        fs::create_dir(&begun).unwrap();
        let alive = Arc::new(SpillDirectories::open(&[root.path().to_owned()], u64::MAX).unwrap());
        let file = alive.create("test", Appends::Any).unwrap();
        assert!(!dead.exists() && !unfinished.exists() && !left.exists());
        assert!(held.exists() && written.path().exists() && set_aside.exists());
        assert!(begun.exists(), "a neighbour may be at it");
        let second = SpillDirectories::open(&[root.path().to_owned()], u64::MAX).unwrap();
        assert!(file.path().exists(), "the directory of a living neighbour is not touched");
        assert!(foreign.exists(), "a directory without a lock is not ours");
        drop(second);
    }

    #[test]
    fn the_quota_is_an_error_that_says_how_much_is_used() {
        let root = tempfile::tempdir().unwrap();
        let directories = Arc::new(SpillDirectories::open(&[root.path().to_owned()], 10).unwrap());
        let file = directories.create("test", Appends::Any).unwrap();
        file.append(&[b"12345678"]).unwrap();
        let error = file.append(&[b"123"]).unwrap_err().to_string();
        assert!(error.contains("quota of 10B has no room for 3B more (8B in 1 files)"), "{error}");
        directories.set_quota(11);
        file.append(&[b"123"]).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = SpillDirectories::open(std::slice::from_ref(&file), 0).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot spill to '{}'", file.display())), "{error}");
    }
}
