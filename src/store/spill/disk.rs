//! What the spill files ask of a file system, so that tests can put one in its place that fails.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::path::Path;

/// Creates files.
pub(in crate::store) trait Disk: Debug + Send + Sync {
    /// A new file, for writing and reading.
    fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>>;
}

/// An open file, written at its end and read anywhere.
pub(in crate::store) trait DiskFile: Debug + Send + Sync {
    /// Appends all of `bytes`.
    fn append(&self, bytes: &[u8]) -> Result<()>;

    /// Fills `bytes` from `offset` on.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()>;
}

/// The operating system's.
#[derive(Debug)]
pub(in crate::store) struct LocalDisk;

impl Disk for LocalDisk {
    fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().create_new(true).read(true).append(true).open(path)?))
    }
}

impl DiskFile for File {
    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut file = self;
        file.write_all(bytes)
    }

    #[cfg(unix)]
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, bytes, offset)
    }

    #[cfg(windows)]
    fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        while !bytes.is_empty() {
            let read = std::os::windows::fs::FileExt::seek_read(self, bytes, offset)?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            bytes = &mut bytes[read..];
            offset += read as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(in crate::store) mod faulty {
    //! A disk that fails on command.

    use super::*;
    use std::io::{Error, ErrorKind};
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
        fn append(&self, bytes: &[u8]) -> Result<()> {
            if self.faults.full.load(SeqCst) {
                let room = self.faults.room.load(SeqCst);
                self.faults.room.store(room.saturating_sub(bytes.len()), SeqCst);
                if bytes.len() > room {
                    self.file.append(&bytes[..room])?;
                    return Err(Error::new(ErrorKind::StorageFull, "no space left on device"));
                }
            }
            self.file.append(bytes)
        }

        fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
            if self.faults.read_fails.load(SeqCst) {
                return Err(Error::other("input/output error"));
            }
            self.file.read_exact_at(bytes, offset)?;
            if self.faults.read_flips_a_bit.load(SeqCst) && !bytes.is_empty() {
                bytes[bytes.len() / 2] ^= 1;
            }
            Ok(())
        }
    }
}
