//! What the spill files ask of a file system, so that tests can put one in its place that fails.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use datafusion::arrow::buffer::Buffer;
use parking_lot::Mutex;

/// How what is appended to a file comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Appends {
    /// In parts of any size.
    Any,
    /// Gathered to mebibytes.
    Large,
}

/// Creates files.
pub(in crate::store) trait Disk: Debug + Send + Sync {
    /// A new file, for writing and reading.
    fn create(&self, path: &Path, appends: Appends) -> Result<Box<dyn DiskFile>>;
}

/// An open file, written at its end and read anywhere.
pub(in crate::store) trait DiskFile: Debug + Send + Sync {
    /// Appends all of `parts`, one after the other.
    fn append(&self, parts: &[&[u8]]) -> Result<()>;

    /// The `length` bytes from `offset` on.
    fn read_at(&self, offset: u64, length: usize) -> Result<Buffer>;

    /// Nothing will be appended soon: there can be more files than a process may hold open.
    fn rest(&self) {}
}

/// A file that is written through one handle and read through others, which have places of their own.
#[derive(Debug)]
pub(super) struct BufferedFile {
    path: PathBuf,
    /// Open while something is appended.
    append: Mutex<Option<File>>,
}

impl BufferedFile {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let append = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(Self { path: path.to_owned(), append: Mutex::new(Some(append)) })
    }
}

impl DiskFile for BufferedFile {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = slices.as_mut_slice();
        // Skips empty parts, so that nothing written means that nothing can be.
        IoSlice::advance_slices(&mut left, 0);
        let mut append = self.append.lock();
        let file = match append.as_mut() {
            Some(file) => file,
            None => append.insert(OpenOptions::new().append(true).open(&self.path)?),
        };
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, length: usize) -> Result<Buffer> {
        read_buffered(&self.path, offset, length)
    }

    fn rest(&self) {
        *self.append.lock() = None;
    }
}

/// The `length` bytes of a file from `offset` on, through the page cache.
pub(super) fn read_buffered(path: &Path, offset: u64, length: usize) -> Result<Buffer> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    // Filled without being zeroed first.
    let mut bytes = Vec::with_capacity(length);
    match file.take(length as u64).read_to_end(&mut bytes)? {
        read if read == length => Ok(Buffer::from_vec(bytes)),
        read => Err(Error::new(ErrorKind::UnexpectedEof, format!("it ends after {read} of {length} bytes"))),
    }
}

#[cfg(test)]
pub(in crate::store) mod faulty {
    //! A disk that fails on command.

    use super::super::local_disk::LocalDisk;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// What goes wrong from now on.
    #[derive(Debug, Default)]
    pub(in crate::store) struct Faults {
        /// Bytes that can still be written before the disk is full; the write that hits the end is cut short.
        pub(in crate::store) full: AtomicBool,
        pub(in crate::store) room: AtomicUsize,
        /// Only the disk with this directory is full, if there is one.
        pub(in crate::store) full_below: Mutex<Option<PathBuf>>,
        pub(in crate::store) read_fails: AtomicBool,
        pub(in crate::store) read_flips_a_bit: AtomicBool,
        pub(in crate::store) create_fails: AtomicBool,
        /// Writes wait as long as somebody has this.
        pub(in crate::store) slow: parking_lot::Mutex<()>,
    }

    #[derive(Debug)]
    pub(in crate::store) struct FaultyDisk(pub(in crate::store) Arc<Faults>);

    #[derive(Debug)]
    struct FaultyFile {
        faults: Arc<Faults>,
        path: PathBuf,
        file: Box<dyn DiskFile>,
    }

    impl Disk for FaultyDisk {
        fn create(&self, path: &Path, appends: Appends) -> Result<Box<dyn DiskFile>> {
            if self.0.create_fails.load(SeqCst) {
                return Err(Error::new(ErrorKind::PermissionDenied, "the directory is read-only"));
            }
            let file = LocalDisk::default().create(path, appends)?;
            Ok(Box::new(FaultyFile { faults: Arc::clone(&self.0), path: path.to_owned(), file }))
        }
    }

    impl DiskFile for FaultyFile {
        fn append(&self, parts: &[&[u8]]) -> Result<()> {
            let bytes = parts.concat();
            drop(self.faults.slow.lock());
            let is_below = |full: &PathBuf| self.path.starts_with(full);
            if self.faults.full.load(SeqCst) && self.faults.full_below.lock().as_ref().is_none_or(is_below) {
                let room = self.faults.room.load(SeqCst);
                self.faults.room.store(room.saturating_sub(bytes.len()), SeqCst);
                if bytes.len() > room {
                    self.file.append(&[&bytes[..room]])?;
                    return Err(Error::new(ErrorKind::StorageFull, "no space left on device"));
                }
            }
            self.file.append(&[&bytes])
        }

        fn read_at(&self, offset: u64, length: usize) -> Result<Buffer> {
            if self.faults.read_fails.load(SeqCst) {
                return Err(Error::other("input/output error"));
            }
            let mut bytes = self.file.read_at(offset, length)?.to_vec();
            if self.faults.read_flips_a_bit.load(SeqCst) && !bytes.is_empty() {
                bytes[length / 2] ^= 1;
            }
            Ok(Buffer::from_vec(bytes))
        }

        fn rest(&self) {
            self.file.rest();
        }
    }
}
