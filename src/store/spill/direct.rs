//! Files that the operating system keeps no copy of. What is spilled is read once, and there is more of it than memory:
//! copies in the page cache only take time, and room from those that help.
//!
//! Direct writes take whole pages, so a file ends with a page that is written again when more follows.

use std::fs::OpenOptions;
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use datafusion::arrow::buffer::Buffer;
use parking_lot::Mutex;

use super::disk::{DiskFile, read_buffered};
use crate::disk::{PAGE, Pages, open_direct};

/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;
/// A read of fewer bytes than this takes longer to reach the disk than to be copied from the page cache, which reads
/// ahead.
const MIN_READ: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct DirectFile {
    path: PathBuf,
    end: Mutex<End>,
}

/// The end of a file: its last page, unless that is full.
#[derive(Debug, Default)]
struct End {
    /// Where the page begins.
    offset: u64,
    page: Vec<u8>,
}

impl DirectFile {
    /// A new file. Fails with `InvalidInput` where the file system has no direct access.
    pub(super) fn create(path: &Path) -> Result<Self> {
        // It is opened anew for each write and read, of mebibytes: there can be more files than a process may hold
        // open.
        let file = open_direct(OpenOptions::new().create_new(true).write(true), path)?;
        // What comes first takes the place of this. It tells whether the device takes pages of this size.
        let mut pages = Pages::with_capacity(PAGE);
        pages.extend(&[0]);
        pages.fill_page();
        file.write_all_at(pages.bytes(), 0)?;
        Ok(Self { path: path.to_owned(), end: Mutex::default() })
    }
}

impl DiskFile for DirectFile {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut end = self.end.lock();
        let file = open_direct(OpenOptions::new().write(true), &self.path)?;
        let mut pages = Pages::with_capacity(WRITE_BYTES);
        let mut offset = end.offset;
        pages.extend(&end.page);
        for mut part in parts.iter().copied() {
            while !part.is_empty() {
                part = pages.extend(part);
                if pages.is_full() {
                    file.write_all_at(pages.bytes(), offset)?;
                    offset += pages.length() as u64;
                    pages.clear();
                }
            }
        }
        let whole = pages.length() / PAGE * PAGE;
        let page = pages.bytes()[whole..].to_vec();
        pages.fill_page();
        file.write_all_at(pages.bytes(), offset)?;
        *end = End { offset: offset + whole as u64, page };
        Ok(())
    }

    fn read_at(&self, offset: u64, length: usize) -> Result<Buffer> {
        if length < MIN_READ {
            return read_buffered(&self.path, offset, length);
        }
        let file = open_direct(OpenOptions::new().read(true), &self.path)?;
        let before = (offset % PAGE as u64) as usize;
        let pages = (before + length).next_multiple_of(PAGE);
        let mut bytes = vec![0; pages + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        file.read_exact_at(&mut bytes[start..start + pages], offset - before as u64)?;
        Ok(Buffer::from_vec(bytes).slice_with_length(start + before, length))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn what_is_appended_in_any_parts_is_read_from_any_place() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let file = match DirectFile::create(&path) {
            // A file system without direct access has nothing to test.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return,
            file => file.unwrap(),
        };
        let bytes: Vec<u8> = (0..3_000_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut written = 0;
        for lengths in [&[1, 0, 4095][..], &[4096], &[5], &[WRITE_BYTES, 7], &[], &[WRITE_BYTES - 12, 1_000_000]] {
            let mut parts = Vec::new();
            for length in lengths {
                parts.push(&bytes[written..(written + length).min(bytes.len())]);
                written += length;
            }
            file.append(&parts).unwrap();
            let now = written.min(bytes.len());
            assert_eq!(file.read_at(0, now).unwrap().as_slice(), &bytes[..now]);
        }
        for (offset, length) in [(1, MIN_READ), (4097, MIN_READ - 1), (4096, 2_000_000), (3_000_000, 1)] {
            assert_eq!(file.read_at(offset, length).unwrap().as_slice(), &bytes[offset as usize..][..length]);
        }
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        let error = file.read_at(0, 2 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
}
