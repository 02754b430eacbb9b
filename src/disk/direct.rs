//! Access to files past the page cache.
//!
//! A direct write takes whole pages, from an address, and to a place, that is a multiple of theirs.

use std::fs::{File, OpenOptions};
#[cfg(not(target_os = "linux"))]
use std::io::ErrorKind;
use std::io::Result;
#[cfg(target_os = "linux")]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What addresses, places and lengths are multiples of: no device has larger sectors.
pub(crate) const PAGE: usize = 4096;

/// Bytes at an address that is a multiple of [`PAGE`].
#[derive(Debug)]
pub(crate) struct Pages {
    bytes: Vec<u8>,
    start: usize,
    capacity: usize,
}

impl Pages {
    /// Room for `capacity` bytes, a multiple of [`PAGE`].
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(capacity + PAGE);
        let start = bytes.as_ptr().align_offset(PAGE);
        bytes.resize(start, 0);
        Self { bytes, start, capacity }
    }

    /// Appends what there is room for. Returns the rest.
    pub(crate) fn extend<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(self.capacity - self.length()));
        self.bytes.extend_from_slice(now);
        later
    }

    /// Appends zeros up to the end of the page.
    pub(crate) fn fill_page(&mut self) {
        self.bytes.resize(self.start + self.length().next_multiple_of(PAGE), 0);
    }

    /// Takes all bytes out.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// What has been appended.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// How many bytes that are.
    pub(crate) fn length(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// For how many bytes there is room in all.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether there is room for no more.
    pub(crate) fn is_full(&self) -> bool {
        self.length() == self.capacity
    }
}

/// Opens a file for direct access. Fails with `InvalidInput` where the file system has none.
#[cfg(target_os = "linux")]
pub(crate) fn open_direct(options: &mut OpenOptions, path: &Path) -> Result<File> {
    options.custom_flags(libc::O_DIRECT).open(path)
}

/// As everywhere but on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn open_direct(_: &mut OpenOptions, _: &Path) -> Result<File> {
    Err(ErrorKind::InvalidInput.into())
}
