//! The disks of this machine.

use std::io::{ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::buffer::Buffer;

#[cfg(unix)]
use super::direct::DirectFile;
use super::disk::{Appends, BufferedFile, Disk, DiskFile};
use crate::disk::{WriteMode, WriteSpeeds};

/// The operating system's. Of large appends it learns whether they are faster through the page cache or past it.
#[derive(Debug, Default)]
pub(in crate::store) struct LocalDisk {
    pace: Arc<WriteSpeeds>,
}

impl Disk for LocalDisk {
    fn create(&self, path: &Path, appends: Appends) -> Result<Box<dyn DiskFile>> {
        if appends == Appends::Any {
            return Ok(Box::new(BufferedFile::create(path)?));
        }
        let timed = |way, file| Box::new(TimedFile { way, file, pace: Arc::clone(&self.pace) });
        #[cfg(unix)]
        if self.pace.next() == WriteMode::Direct {
            match DirectFile::create(path) {
                Ok(file) => return Ok(timed(WriteMode::Direct, Box::new(file))),
                Err(e) if e.kind() == ErrorKind::InvalidInput => {
                    self.pace.direct_is_impossible();
                    // It may have been created before that was found out.
                    let _gone = std::fs::remove_file(path);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(timed(WriteMode::Buffered, Box::new(BufferedFile::create(path)?)))
    }
}

/// A file of whose writes the pace is taken.
#[derive(Debug)]
struct TimedFile {
    way: WriteMode,
    file: Box<dyn DiskFile>,
    pace: Arc<WriteSpeeds>,
}

impl DiskFile for TimedFile {
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let begin = Instant::now();
        self.file.append(parts)?;
        self.pace.wrote(self.way, parts.iter().map(|part| part.len()).sum(), begin.elapsed());
        Ok(())
    }

    fn read_at(&self, offset: u64, length: usize) -> Result<Buffer> {
        self.file.read_at(offset, length)
    }

    fn rest(&self) {
        self.file.rest();
    }
}
