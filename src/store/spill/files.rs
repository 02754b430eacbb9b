//! Files that take many blocks, one after the other.

use std::io;
use std::sync::{Arc, Weak};

use datafusion::arrow::buffer::Buffer;
use datafusion::common::Result;
use parking_lot::Mutex;

use super::disk::Appends;
use super::{SpillDirectories, TempFile};
use crate::error::spill_error;

/// A file takes no more blocks when it has this many bytes: large enough to be written in one go, small enough that its
/// room comes back while a query runs.
const TARGET_BYTES: u64 = 100 << 20;
/// What the files hold, for people.
const BLOCKS: &str = "blocks";
/// Bytes that are gathered before they are written.
const WRITE_BYTES: usize = 4 << 20;

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

    /// Writes at the end of a file with room, in another spill directory where the disk of one is full. What `write`
    /// leaves incomplete is never read, and the file not used again.
    pub(super) fn append<T>(&self, write: impl Fn(&mut Appender) -> Result<T>) -> Result<(Arc<TempFile>, T)> {
        let mut file = match self.take_idle() {
            Some(file) => file,
            None => self.directories.create(BLOCKS, Appends::Large)?,
        };
        let mut full = Vec::new();
        loop {
            let error = match self.append_to(&file, &write) {
                Ok(written) => return Ok((file, written)),
                Err(e) => e,
            };
            file.rest();
            if spill_error(&error).map(io::Error::kind) != Some(io::ErrorKind::StorageFull) {
                return Err(error);
            }
            full.push(file.directory().1);
            file = match self.directories.create_besides(BLOCKS, Appends::Large, &full) {
                Ok(file) => file,
                Err(_) => return Err(error),
            };
        }
    }

    fn append_to<T>(&self, file: &Arc<TempFile>, write: impl Fn(&mut Appender) -> Result<T>) -> Result<T> {
        let mut appender =
            Appender { offset: file.bytes(), file: Arc::clone(file), gathered: Vec::new(), gathered_bytes: 0 };
        let written = write(&mut appender)?;
        appender.write_gathered()?;
        file.rest();
        if file.bytes() < TARGET_BYTES {
            self.idle.lock().push(Arc::downgrade(file));
        }
        Ok(written)
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
    gathered: Vec<Buffer>,
    gathered_bytes: usize,
}

impl Appender {
    /// Where the next byte goes.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Makes the place of the next byte a multiple of `alignment`.
    pub(super) fn align(&mut self, alignment: usize) -> Result<()> {
        match self.offset as usize % alignment {
            0 => Ok(()),
            over => self.append(Buffer::from_vec(vec![0_u8; alignment - over])),
        }
    }

    /// Appends a buffer, which is written now or with those that follow. None of its bytes is copied here.
    pub(super) fn append(&mut self, buffer: Buffer) -> Result<()> {
        self.offset += buffer.len() as u64;
        self.gathered_bytes += buffer.len();
        self.gathered.push(buffer);
        if self.gathered_bytes < WRITE_BYTES {
            return Ok(());
        }
        self.write_gathered()
    }

    fn write_gathered(&mut self) -> Result<()> {
        let parts: Vec<&[u8]> = self.gathered.iter().map(Buffer::as_slice).collect();
        let result = self.file.append(&parts);
        self.gathered.clear();
        self.gathered_bytes = 0;
        result.map_err(|e| self.file.error(&e, "write"))
    }
}
