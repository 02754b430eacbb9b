//! The spill files of DataFusion's operators: in our directories, under our quota, and with checksums.

use std::io::{self, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::execution::spill_file::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;

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

/// DataFusion's handle of one of its files. An operator may read it while it is still written.
struct OperatorFile {
    file: Arc<TempFile>,
    parts: Arc<Mutex<Parts>>,
}

impl OperatorFile {
    fn new(file: Arc<TempFile>) -> Self {
        Self { file, parts: Arc::default() }
    }
}

/// The checksums of a file, part by part.
#[derive(Debug, Default)]
struct Parts {
    parts: Vec<Part>,
    /// Up to here parts were handed out to readers, and stay as they are.
    handed_out: u64,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    checksum: u32,
}

impl Parts {
    /// Notes bytes that were appended.
    fn append(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        match self.parts.last_mut() {
            Some(part) if part.start >= self.handed_out && part.end - part.start < READ_BYTES => {
                part.end += length;
                part.checksum = checksum(part.checksum, bytes);
            }
            last => {
                let start = last.map_or(0, |part| part.end);
                self.parts.push(Part { start, end: start + length, checksum: checksum(0, bytes) });
            }
        }
    }

    /// The part that starts at a byte, if it was written.
    fn at(&mut self, start: u64) -> Option<Part> {
        let index = self.parts.partition_point(|part| part.start < start);
        let part = self.parts.get(index).copied()?;
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

impl SpillFile for OperatorFile {
    fn path(&self) -> Option<&Path> {
        Some(self.file.path())
    }

    fn size(&self) -> Option<u64> {
        Some(self.file.bytes())
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let (file, parts) = (Arc::clone(&self.file), Arc::clone(&self.parts));
        let open = stream::once(async move {
            let opened = tokio::fs::File::open(file.path()).await.map_err(|e| file.error(&e, "open"))?;
            let chunks = stream::try_unfold((opened, 0), move |(mut opened, position)| {
                let (file, part) = (Arc::clone(&file), parts.lock().at(position));
                async move {
                    let Some(part) = part else {
                        return Ok(None);
                    };
                    let mut chunk = vec![0; (part.end - part.start) as usize];
                    opened.read_exact(&mut chunk).await.map_err(|e| file.error(&e, "read"))?;
                    if checksum(0, &chunk) != part.checksum {
                        let (path, what) = (file.path().display(), file.what());
                        return exec_err!("spill file {path} of {what} is damaged behind byte {position}");
                    }
                    Ok(Some((Bytes::from(chunk), (opened, part.end))))
                }
            });
            Ok::<_, DataFusionError>(chunks)
        });
        Ok(Box::pin(open.try_flatten()))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(OperatorWriter { file: Arc::clone(&self.file), parts: Arc::clone(&self.parts) }))
    }
}

struct OperatorWriter {
    file: Arc<TempFile>,
    parts: Arc<Mutex<Parts>>,
}

impl Write for OperatorWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let told = |e: io::Error| io::Error::new(e.kind(), self.file.error(&e, "write").message().into_owned());
        if !bytes.is_empty() {
            self.file.append(&[bytes]).map_err(told)?;
            // Only now readers may come to it.
            self.parts.lock().append(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for OperatorWriter {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
