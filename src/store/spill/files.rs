//! Files that take many blocks, one after the other.

use std::io::{self, Write};
use std::sync::{Arc, Weak};

use datafusion::common::Result;
use parking_lot::Mutex;

use super::{SpillDirectories, TempFile};

/// A file takes no more blocks when it has this many bytes: large enough to be written in one go, small enough that its
/// room comes back while a query runs.
const TARGET_BYTES: u64 = 100 << 20;
/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 1 << 20;

/// The spill files of blocks. Each writer has a file of its own while it writes, so that every file is sequential.
#[derive(Debug)]
pub(in crate::store) struct SpillFiles {
    directories: Arc<SpillDirectories>,
    /// Files that have room and no writer. They go with their blocks all the same.
    idle: Mutex<Vec<Weak<TempFile>>>,
}

impl SpillFiles {
    pub(in crate::store) fn new(directories: Arc<SpillDirectories>) -> Self {
        Self { directories, idle: Mutex::default() }
    }

    pub(in crate::store) fn directories(&self) -> &Arc<SpillDirectories> {
        &self.directories
    }

    /// Writes at the end of a file with room. What `write` leaves incomplete is never read, and the file not used again.
    pub(super) fn append<T>(&self, write: impl FnOnce(&mut Appender) -> Result<T>) -> Result<(Arc<TempFile>, T)> {
        let file = match self.take_idle() {
            Some(file) => file,
            None => self.directories.create("blocks")?,
        };
        let mut appender = Appender { offset: file.bytes(), file: Arc::clone(&file), gathered: Vec::new() };
        let written = write(&mut appender)?;
        appender.write_gathered().map_err(|e| file.error(&e, "write"))?;
        if file.bytes() < TARGET_BYTES {
            self.idle.lock().push(Arc::downgrade(&file));
        }
        Ok((file, written))
    }

    fn take_idle(&self) -> Option<Arc<TempFile>> {
        let mut idle = self.idle.lock();
        while let Some(file) = idle.pop() {
            if let Some(file) = file.upgrade() {
                return Some(file);
            }
        }
        None
    }
}

/// Writes to a file, and knows where.
#[derive(Debug)]
pub(super) struct Appender {
    file: Arc<TempFile>,
    offset: u64,
    gathered: Vec<u8>,
}

impl Appender {
    /// Where the next byte goes.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The file.
    pub(super) fn file(&self) -> &TempFile {
        &self.file
    }

    fn write_gathered(&mut self) -> io::Result<()> {
        let result = self.file.append(&self.gathered);
        self.gathered.clear();
        result
    }
}

impl Write for Appender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() + bytes.len() > WRITE_BYTES {
            self.write_gathered()?;
        }
        match bytes.len() >= WRITE_BYTES {
            true => self.file.append(bytes)?,
            false => self.gathered.extend_from_slice(bytes),
        }
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_gathered()
    }
}
