//! A file on a local disk, written from its beginning to its end.
//!
//! Much of what is written goes past the page cache, where that holds up the writer less: each page of the cache has to
//! be found and filled, while a disk takes what it gets by itself. A thread hands it over, so that the writer encodes
//! what comes next.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::disk::{PAGE, Pages, WriteMode, WriteSpeeds, open_direct};
use crate::runtime::in_thread;

/// Bytes that are written at once, as a part of what a writer may buffer, and their bounds.
const PIECE_PART: usize = 16;
const MIN_PIECE_BYTES: usize = 64 << 10;
const MAX_PIECE_BYTES: usize = 1 << 20;
/// Pieces that wait for the disk: a row group, which is written when all of it is encoded, or a part of a large one.
const PIECES_AHEAD: usize = 32;
/// After so many pieces it is decided anew how to write.
const STRETCH_PIECES: usize = 16;

/// A new file. What has been written is in it after [`LocalFile::finish`].
#[derive(Debug)]
pub(crate) struct LocalFile {
    path: PathBuf,
    /// The file through the page cache.
    file: File,
    /// The file past it, once that is of use.
    direct: Option<DirectWriter>,
    pace: Arc<WriteSpeeds>,
    /// How the pieces of this stretch are written, when there is one.
    way: Option<WriteMode>,
    stretch: Stretch,
    /// What has not been written.
    pages: Pages,
    /// How much has been written.
    offset: u64,
}

/// What was written since it was last decided how.
#[derive(Debug, Default)]
struct Stretch {
    pieces: usize,
    bytes: usize,
    /// For how long the writer was held up.
    took: Duration,
}

impl LocalFile {
    /// A new file in the place of any other, in a directory that is there, for a writer which may buffer
    /// `buffer_bytes`.
    pub(super) fn create(path: &Path, pace: Arc<WriteSpeeds>, buffer_bytes: usize) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: File::create(path)?,
            direct: None,
            pace,
            way: None,
            stretch: Stretch::default(),
            pages: Pages::with_capacity(piece_bytes(buffer_bytes)),
            offset: 0,
        })
    }

    /// The most bytes that such a file has in memory.
    pub(super) fn memory_bytes(buffer_bytes: usize) -> usize {
        buffer_bytes.min(PIECES_AHEAD * MAX_PIECE_BYTES) + 2 * piece_bytes(buffer_bytes)
    }

    /// Writes the rest, and waits until all of it is written.
    pub(super) fn finish(mut self) -> Result<()> {
        let length = self.offset + self.pages.length() as u64;
        let begin = Instant::now();
        let rest = self.pages.length();
        match (self.way, &mut self.direct) {
            (Some(WriteMode::Direct), Some(direct)) => {
                self.pages.fill_page();
                direct.write(self.offset, &mut self.pages)?;
            }
            _ => write_at(&mut self.file, self.offset, self.pages.bytes())?,
        }
        if let Some(direct) = &mut self.direct {
            direct.finish()?;
            // The last page was written as a whole.
            self.file.set_len(length)?;
        }
        self.count(rest, begin.elapsed());
        self.end_stretch();
        Ok(())
    }

    /// Writes all pages, which are whole.
    fn write_piece(&mut self) -> Result<()> {
        let begin = Instant::now();
        let bytes = self.pages.length();
        let way = match self.way {
            Some(way) => way,
            None => self.begin_stretch()?,
        };
        match (way, &mut self.direct) {
            (WriteMode::Direct, Some(direct)) => {
                direct.write(self.offset, &mut self.pages)?;
            }
            _ => write_at(&mut self.file, self.offset, self.pages.bytes())?,
        }
        self.pages.clear();
        self.offset += bytes as u64;
        self.count(bytes, begin.elapsed());
        if self.stretch.pieces == STRETCH_PIECES {
            self.end_stretch();
        }
        Ok(())
    }

    fn begin_stretch(&mut self) -> Result<WriteMode> {
        let mut way = self.pace.next();
        if way == WriteMode::Direct && self.direct.is_none() {
            match DirectWriter::open(&self.path, self.offset, &self.pages.bytes()[..PAGE]) {
                Ok(direct) => self.direct = Some(direct),
                Err(e) if e.kind() == ErrorKind::InvalidInput => {
                    self.pace.direct_is_impossible();
                    way = WriteMode::Buffered;
                }
                Err(e) => return Err(e),
            }
        }
        if let (WriteMode::Buffered, Some(direct)) = (way, &mut self.direct) {
            direct.finish()?;
        }
        self.way = Some(way);
        Ok(way)
    }

    fn count(&mut self, bytes: usize, took: Duration) {
        self.stretch.pieces += 1;
        self.stretch.bytes += bytes;
        self.stretch.took += took;
    }

    fn end_stretch(&mut self) {
        if let Some(way) = self.way.take() {
            self.pace.wrote(way, self.stretch.bytes, self.stretch.took);
        }
        self.stretch = Stretch::default();
    }
}

impl Write for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = self.pages.extend(rest);
            if self.pages.is_full() {
                self.write_piece()?;
            }
        }
        Ok(bytes.len())
    }

    /// Does nothing: a file is complete when it is finished.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn piece_bytes(buffer_bytes: usize) -> usize {
    (buffer_bytes / PIECE_PART).clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES) / PAGE * PAGE
}

fn write_at(file: &mut File, offset: u64, bytes: &[u8]) -> Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// A thread that writes past the page cache.
#[derive(Debug)]
struct DirectWriter {
    pieces: Sender<(u64, Pages)>,
    written: Receiver<Result<Pages>>,
    /// Pieces that are not written yet, as far as is known.
    ahead: usize,
    empty: Vec<Pages>,
}

impl DirectWriter {
    /// Opens a file. `page` is written at `offset` to see whether that can be. Fails with `InvalidInput` where it
    /// cannot.
    fn open(path: &Path, offset: u64, page: &[u8]) -> Result<Self> {
        let mut file = open_direct(OpenOptions::new().write(true), path)?;
        write_at(&mut file, offset, page)?;
        let (pieces, to_write) = channel::<(u64, Pages)>();
        let (done, written) = channel();
        in_thread("blockyard-write", move || {
            for (offset, pages) in to_write {
                let result = write_at(&mut file, offset, pages.bytes());
                let failed = result.is_err();
                // Nobody waits any more where the write has failed or was cancelled.
                if done.send(result.map(|()| pages)).is_err() || failed {
                    return;
                }
            }
        })
        .map_err(Error::other)?;
        Ok(Self { pieces, written, ahead: 0, empty: Vec::new() })
    }

    /// Writes pages when it comes to it, and leaves others in their place that are empty.
    fn write(&mut self, offset: u64, pages: &mut Pages) -> Result<()> {
        while self.ahead >= PIECES_AHEAD {
            self.wait()?;
        }
        let mut empty = self.empty.pop().unwrap_or_else(|| Pages::with_capacity(pages.capacity()));
        empty.clear();
        if self.pieces.send((offset, std::mem::replace(pages, empty))).is_err() {
            // The thread has ended, and says why.
            loop {
                self.wait()?;
            }
        }
        self.ahead += 1;
        Ok(())
    }

    /// Waits until all is written.
    fn finish(&mut self) -> Result<()> {
        while self.ahead > 0 {
            self.wait()?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let pages = self.written.recv().map_err(|_| Error::other("the thread that writes it has ended"))??;
        self.empty.push(pages);
        self.ahead -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = MIN_PIECE_BYTES;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn a_file_has_what_was_written_whichever_way() {
        let root = tempfile::tempdir().unwrap();
        let stretch = STRETCH_PIECES * PIECE;
        let lengths = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, stretch, stretch + 1, 5 * stretch + 4097];
        for (name, ways) in [
            ("direct", [Some(WriteMode::Direct); 2]),
            ("buffered", [Some(WriteMode::Buffered); 2]),
            ("both", [None; 2]),
        ] {
            for (part, length) in lengths.iter().flat_map(|length| [(7777, *length), (3 * PIECE, *length)]) {
                let pace = Arc::new(WriteSpeeds::default());
                // The one that is said to be fast is taken, but for one stretch in some.
                for way in ways.into_iter().flatten() {
                    let slow = if way == WriteMode::Direct { WriteMode::Buffered } else { WriteMode::Direct };
                    pace.wrote(way, 1 << 40, Duration::ZERO);
                    pace.wrote(slow, 1, Duration::from_secs(1 << 30));
                }
                let path = root.path().join(format!("{name}-{part}-{length}"));
                let expected = bytes(length);
                let mut file = LocalFile::create(&path, pace, 0).unwrap();
                expected.chunks(part).for_each(|chunk| file.write_all(chunk).unwrap());
                file.finish().unwrap();
                assert!(std::fs::read(&path).unwrap() == expected, "{}", path.display());
            }
        }
    }

    #[test]
    fn a_file_takes_the_place_of_a_longer_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        for length in [5 * PIECE, PIECE + 3, 7] {
            let mut file = LocalFile::create(&path, Arc::default(), 0).unwrap();
            file.write_all(&bytes(length)).unwrap();
            file.finish().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes(length));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error() {
        for length in [1, PIECE, 10 * PIECE] {
            let mut file = LocalFile::create(Path::new("/dev/full"), Arc::default(), 0).unwrap();
            let result = file.write_all(&bytes(length)).and_then(|()| file.finish());
            assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
        }
    }
}
