//! What the spill files ask of a file system, so that tests can put one in its place that fails.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Creates files.
pub(in crate::store) trait Disk: Debug + Send + Sync {
    /// A new file, for writing and reading.
    fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>>;
}

/// An open file, written at its end and read anywhere.
pub(in crate::store) trait DiskFile: Debug + Send + Sync {
    /// Appends all of `parts`, one after the other.
    fn append(&self, parts: &[&[u8]]) -> Result<()>;

    /// The `length` bytes from `offset` on.
    fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>>;
}

/// The operating system's.
#[derive(Debug)]
pub(in crate::store) struct LocalDisk;

impl Disk for LocalDisk {
    fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>> {
        let append = OpenOptions::new().create_new(true).append(true).open(path)?;
        Ok(Box::new(LocalFile { path: path.to_owned(), append }))
    }
}

/// A file that is written through one handle and read through others, which have places of their own.
#[derive(Debug)]
struct LocalFile {
    path: PathBuf,
    append: File,
}

impl DiskFile for LocalFile {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = slices.as_mut_slice();
        // Skips empty parts, so that nothing written means that nothing can be.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match (&self.append).write_vectored(left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(offset))?;
        // Filled without being zeroed first.
        let mut bytes = Vec::with_capacity(length);
        match file.take(length as u64).read_to_end(&mut bytes)? {
            read if read == length => Ok(bytes),
            read => Err(Error::new(ErrorKind::UnexpectedEof, format!("it ends after {read} of {length} bytes"))),
        }
    }
}

#[cfg(test)]
pub(in crate::store) mod faulty {
    //! A disk that fails on command.

    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// What goes wrong from now on.
    #[derive(Debug, Default)]
    pub(in crate::store) struct Faults {
        /// Bytes that can still be written before the disk is full; the write that hits the end is cut short.
        pub(in crate::store) full: AtomicBool,
        pub(in crate::store) room: AtomicUsize,
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
        file: Box<dyn DiskFile>,
    }

    impl Disk for FaultyDisk {
        fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>> {
            if self.0.create_fails.load(SeqCst) {
                return Err(Error::new(ErrorKind::PermissionDenied, "the directory is read-only"));
            }
            Ok(Box::new(FaultyFile { faults: Arc::clone(&self.0), file: LocalDisk.create(path)? }))
        }
    }

    impl DiskFile for FaultyFile {
        fn append(&self, parts: &[&[u8]]) -> Result<()> {
            let bytes = parts.concat();
            drop(self.faults.slow.lock());
            if self.faults.full.load(SeqCst) {
                let room = self.faults.room.load(SeqCst);
                self.faults.room.store(room.saturating_sub(bytes.len()), SeqCst);
                if bytes.len() > room {
                    self.file.append(&[&bytes[..room]])?;
                    return Err(Error::new(ErrorKind::StorageFull, "no space left on device"));
                }
            }
            self.file.append(&[&bytes])
        }

        fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
            if self.faults.read_fails.load(SeqCst) {
                return Err(Error::other("input/output error"));
            }
            let mut bytes = self.file.read_at(offset, length)?;
            if self.faults.read_flips_a_bit.load(SeqCst) && !bytes.is_empty() {
                bytes[length / 2] ^= 1;
            }
            Ok(bytes)
        }
    }
}
