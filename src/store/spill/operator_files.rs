//! The spill files of DataFusion's operators: in our directories, under our quota, and with checksums.

use std::io::{self, SeekFrom, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{Result, exec_err};
use datafusion::execution::spill_file::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::disk::Appends;
use super::{SpillDirectories, TempFile};

/// Bytes that are read at once, about.
const READ_BYTES: u64 = 128 << 10;

/// Makes the temporary files of DataFusion's operators.
pub(in crate::store) struct OperatorFiles(pub(in crate::store) Arc<SpillDirectories>);

impl TempFileFactory for OperatorFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(OperatorFile::new(self.0.create(description, Appends::Any)?)))
    }
}

/// DataFusion's handle of one of its files. An operator may read it while it is still written. Where its disk is full,
/// it goes on in another spill directory.
struct OperatorFile {
    parts: Arc<Mutex<FileParts>>,
    /// The first of its files.
    file: Arc<TempFile>,
}

impl OperatorFile {
    fn new(file: Arc<TempFile>) -> Self {
        let parts = FileParts { files: vec![Arc::clone(&file)], parts: Vec::new(), handed_out: 0 };
        Self { file, parts: Arc::new(Mutex::new(parts)) }
    }
}

/// What was written, with checksums.
#[derive(Debug)]
struct FileParts {
    /// Each but the last ended where its disk was full.
    files: Vec<Arc<TempFile>>,
    parts: Vec<FilePart>,
    /// Up to here parts were handed out to readers, and stay as they are.
    handed_out: u64,
}

/// Bytes of the whole, and where they are.
#[derive(Debug, Clone)]
struct FilePart {
    start: u64,
    end: u64,
    checksum: u32,
    file: Arc<TempFile>,
    offset: u64,
}

impl FileParts {
    /// Notes bytes that were appended to a file, at `offset` of it.
    fn append(&mut self, bytes: &[u8], file: &Arc<TempFile>, offset: u64) {
        let length = bytes.len() as u64;
        match self.parts.last_mut() {
            Some(part)
                if part.start >= self.handed_out
                    && part.end - part.start < READ_BYTES
                    && Arc::ptr_eq(&part.file, file) =>
            {
                part.end += length;
                part.checksum = checksum(part.checksum, bytes);
            }
            last => {
                let start = last.map_or(0, |part| part.end);
                let (checksum, file) = (checksum(0, bytes), Arc::clone(file));
                self.parts.push(FilePart { start, end: start + length, checksum, file, offset });
            }
        }
    }

    /// The part that starts at a byte, if it was written.
    fn at(&mut self, start: u64) -> Option<FilePart> {
        let index = self.parts.partition_point(|part| part.start < start);
        let part = self.parts.get(index).cloned()?;
        self.handed_out = self.handed_out.max(part.end);
        Some(part)
    }
}

/// The checksum of bytes that follow those of another one.
fn checksum(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

impl FilePart {
    /// Its bytes. The file is opened for them alone: operators merge more files than a process may hold open.
    async fn read(&self) -> Result<Bytes> {
        let _leave = self.file.directory().0.leave_to_read().await?;
        let failed = |e: io::Error| self.file.error(&e, "read");
        let mut opened = tokio::fs::File::open(self.file.path()).await.map_err(|e| self.file.error(&e, "open"))?;
        opened.seek(SeekFrom::Start(self.offset)).await.map_err(failed)?;
        let mut bytes = vec![0; (self.end - self.start) as usize];
        opened.read_exact(&mut bytes).await.map_err(failed)?;
        if checksum(0, &bytes) != self.checksum {
            let (path, what) = (self.file.path().display(), self.file.what());
            return exec_err!("spill file {path} of {what} is damaged behind byte {}", self.offset);
        }
        Ok(Bytes::from(bytes))
    }
}

impl SpillFile for OperatorFile {
    fn path(&self) -> Option<&Path> {
        Some(self.file.path())
    }

    fn size(&self) -> Option<u64> {
        Some(self.parts.lock().files.iter().map(|file| file.bytes()).sum())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let parts = Arc::clone(&self.parts);
        let chunks = stream::try_unfold(0, move |position| {
            let part = parts.lock().at(position);
            async move {
                match part {
                    Some(part) => Ok(Some((part.read().await?, part.end))),
                    None => Ok(None),
                }
            }
        });
        Ok(Box::pin(chunks))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(OperatorWriter { parts: Arc::clone(&self.parts) }))
    }
}

struct OperatorWriter {
    parts: Arc<Mutex<FileParts>>,
}

impl OperatorWriter {
    /// The file that is written, which is the only writer's to change.
    fn file(&self) -> Option<Arc<TempFile>> {
        self.parts.lock().files.last().cloned()
    }

    /// Goes on in a directory that is not known to be full; fails with the error of this one where there is none.
    fn go_on_elsewhere(&self, full: &TempFile) -> Option<Arc<TempFile>> {
        full.rest();
        let numbers: Vec<usize> = self.parts.lock().files.iter().map(|file| file.directory().1).collect();
        let file = full.directory().0.create_besides(full.what(), Appends::Any, &numbers).ok()?;
        self.parts.lock().files.push(Arc::clone(&file));
        Some(file)
    }
}

impl Write for OperatorWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(mut file) = self.file().filter(|_| !bytes.is_empty()) else {
            return Ok(0);
        };
        loop {
            let offset = file.bytes();
            match file.append(&[bytes]) {
                Ok(()) => {
                    // Only now readers may come to it.
                    self.parts.lock().append(bytes, &file, offset);
                    return Ok(bytes.len());
                }
                Err(e) if e.kind() == io::ErrorKind::StorageFull => match self.go_on_elsewhere(&file) {
                    Some(other) => file = other,
                    None => return Err(file.io_error(&e, "write")),
                },
                Err(e) => return Err(file.io_error(&e, "write")),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for OperatorWriter {
    fn finish(&mut self) -> Result<()> {
        if let Some(file) = self.file() {
            file.rest();
        }
        Ok(())
    }
}

impl Drop for OperatorWriter {
    fn drop(&mut self) {
        if let Some(file) = self.file() {
            file.rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use futures::TryStreamExt;

    use super::super::disk::faulty::{Faults, FaultyDisk};
    use super::*;

    #[tokio::test]
    async fn a_file_goes_on_in_another_directory_when_its_disk_is_full() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let faults = Arc::new(Faults::default());
        faults.room.store(10, SeqCst);
        faults.full.store(true, SeqCst);
        *faults.full_below.lock() = Some(one.path().to_owned());
        let roots = [one.path().to_owned(), two.path().to_owned()];
        let disk = Arc::new(FaultyDisk(Arc::clone(&faults)));
        let directories = Arc::new(SpillDirectories::on_disk(&roots, u64::MAX, disk).unwrap());
        let file = OperatorFile::new(directories.create("a sort", Appends::Any).unwrap());
        let mut writer = file.open_writer().unwrap();
        writer.write_all(b"12345678").unwrap();
        writer.write_all(b"abcdefgh").unwrap();
        writer.write_all(b"ij").unwrap();
        let read: Vec<Bytes> = file.read_stream().unwrap().try_collect().await.unwrap();
        assert_eq!(read.concat(), b"12345678abcdefghij");
        // With all of them full it is an error of IO, not of memory.
        *faults.full_below.lock() = None;
        let error = writer.write_all(b"klmnopqr").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("cannot write spill file"), "{error}");
    }

    fn written(root: &Path, appended: &[&[u8]]) -> OperatorFile {
        let directories = Arc::new(SpillDirectories::open(&[root.to_owned()], u64::MAX).unwrap());
        let file = OperatorFile::new(directories.create("a sort", Appends::Any).unwrap());
        let mut writer = file.open_writer().unwrap();
        for bytes in appended {
            writer.write_all(bytes).unwrap();
        }
        file
    }

    #[tokio::test]
    async fn a_file_is_read_while_it_is_written() {
        let root = tempfile::tempdir().unwrap();
        let file = written(root.path(), &[b"one", b"two"]);
        let mut reader = file.read_stream().unwrap();
        assert_eq!(reader.try_next().await.unwrap().unwrap(), b"onetwo"[..]);
        file.open_writer().unwrap().write_all(b"three").unwrap();
        assert_eq!(reader.try_next().await.unwrap().unwrap(), b"three"[..]);
        assert!(reader.try_next().await.unwrap().is_none());
        let again: Vec<Bytes> = file.read_stream().unwrap().try_collect().await.unwrap();
        assert_eq!(again.concat(), b"onetwothree");
    }

    #[tokio::test]
    async fn a_flipped_bit_is_an_error_that_names_file_and_operator() {
        let root = tempfile::tempdir().unwrap();
        let large = vec![7; 300_000];
        let file = written(root.path(), &[&large, b"rest"]);
        let mut bytes = std::fs::read(file.path().unwrap()).unwrap();
        bytes[300_001] ^= 1;
        std::fs::write(file.path().unwrap(), bytes).unwrap();
        let mut reader = file.read_stream().unwrap();
        assert_eq!(reader.try_next().await.unwrap().unwrap().len(), 300_000);
        let error = reader.try_next().await.unwrap_err().to_string();
        assert!(error.contains(".arrow of a sort is damaged behind byte 300000"), "{error}");
    }
}
