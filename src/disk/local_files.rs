//! Local files as an object store, whose cached bytes are read at once.
//!
//! `object_store` reads local files on threads that may wait, and wakes who has asked: with small column chunks that
//! takes longer than the read, which mostly finds its bytes in the page cache. Linux can be asked for these only: where
//! some are missing, or they are many, all is read on another thread, into memory that nobody has cleared before.

use std::fmt::{Display, Formatter};
use std::fs::{File, Metadata};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path as FilePath;
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use crate::runtime::on_io_thread;

/// Longer ranges are given as the file: who asks may read them piece by piece.
const READ_AT_ONCE: u64 = 1 << 20;

/// More bytes are read on another thread, which hardly takes longer then: others wait for this one.
const MAX_BYTES: u64 = 8 << 20;

/// All files of this machine.
#[derive(Debug)]
pub(crate) struct LocalFiles(LocalFileSystem);

impl LocalFiles {
    /// By their absolute paths.
    pub(crate) fn new() -> Self {
        Self(LocalFileSystem::new())
    }

    fn open(&self, location: &Path) -> Option<Cached> {
        Cached::open(&self.0.path_to_filesystem(location).ok()?)
    }

    /// Ranges of a file, read where it holds up nobody. Errors are left to who reads otherwise.
    async fn read_elsewhere(&self, location: &Path, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
        if ranges.iter().any(Range::is_empty) {
            return None;
        }
        let (path, ranges) = (self.0.path_to_filesystem(location).ok()?, ranges.to_vec());
        let read = on_io_thread(move || {
            let file = File::open(&path)?;
            Ok(ranges.iter().map(|range| read_range(&file, range)).collect())
        });
        read.await.ok().flatten()
    }

    /// What a request asks for, if no disk is asked for it. Errors are left to who reads otherwise.
    fn cached(&self, location: &Path, options: &GetOptions) -> Option<GetResult> {
        let path = self.0.path_to_filesystem(location).ok()?;
        let file = Cached::open(&path)?;
        let meta = file.meta(location)?;
        options.check_preconditions(&meta).ok()?;
        let range = match &options.range {
            Some(range) => range.as_range(meta.size).ok()?,
            None => 0..meta.size,
        };
        let payload = if options.range.is_some() && !options.head && range.end - range.start <= READ_AT_ONCE {
            let bytes = file.read(&range)?;
            GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed())
        } else {
            GetResultPayload::File(file.file, path)
        };
        Some(GetResult { payload, meta, range, attributes: Attributes::default() })
    }
}

impl Display for LocalFiles {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The bytes of a range, if the file has them.
fn read_range(file: &File, range: &Range<u64>) -> Option<Bytes> {
    let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let next = range.start + bytes.len() as u64;
        match pread(file, spare_capacity(&mut bytes), next) {
            Ok(0) => return None,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(length);
    Some(bytes.into())
}

/// A file whose path was found without asking a disk.
struct Cached {
    file: File,
    metadata: Metadata,
}

impl Cached {
    fn open(path: &FilePath) -> Option<Self> {
        // A pipe would wait for who writes to it.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?);
        let metadata = file.metadata().ok().filter(Metadata::is_file)?;
        Some(Self { file, metadata })
    }

    /// As `object_store` says it, down to the tag by which a file is found to have changed.
    fn meta(&self, location: &Path) -> Option<ObjectMeta> {
        let (modified, size) = (self.metadata.modified().ok()?, self.metadata.len());
        let micros = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let e_tag = Some(format!("{:x}-{micros:x}-{size:x}", self.metadata.ino()));
        Some(ObjectMeta { location: location.clone(), last_modified: modified.into(), size, e_tag, version: None })
    }

    /// The bytes of a range, if all of them are in the page cache.
    fn read(&self, range: &Range<u64>) -> Option<Bytes> {
        if range.is_empty() || range.end > self.metadata.len() {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
        let mut read = 0;
        while read < bytes.len() {
            let rest = &mut [IoSliceMut::new(&mut bytes[read..])];
            match preadv2(&self.file, rest, range.start + read as u64, ReadWriteFlags::NOWAIT).ok()? {
                0 => return None,
                more => read += more,
            }
        }
        Some(bytes.into())
    }
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        match self.cached(location, &options) {
            Some(result) => Ok(result),
            None => self.0.get_opts(location, options).await,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let lengths = ranges.iter().map(|range| range.end.saturating_sub(range.start));
        let file = if lengths.fold(0, u64::saturating_add) <= MAX_BYTES { self.open(location) } else { None };
        match file.and_then(|file| ranges.iter().map(|range| file.read(range)).collect()) {
            Some(bytes) => Ok(bytes),
            None => match self.read_elsewhere(location, ranges).await {
                Some(bytes) => Ok(bytes),
                None => self.0.get_ranges(location, ranges).await,
            },
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::{GetRange, ObjectStoreExt};

    #[tokio::test]
    async fn bytes_and_errors_are_those_of_the_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
        std::fs::write(directory.path().join("a file, with %20"), &bytes).unwrap();
        let path = |name: &str| Path::from_absolute_path(directory.path().join(name)).unwrap();
        let (ours, theirs) = (LocalFiles::new(), LocalFileSystem::new());
        let ranges = [0..0, 0..1, 299_999..300_000, 5..200_000, 299_990..300_010, 300_000..300_000, 400_000..400_001];
        // Written just now: all of it is in the page cache.
        let cached = ours.open(&path("a file, with %20")).unwrap();
        assert_eq!(cached.read(&(10..20)).unwrap(), bytes[10..20]);
        // As many at once are read elsewhere.
        let read = ours.read_elsewhere(&path("a file, with %20"), &[10..20, 0..300_000]).await.unwrap();
        assert_eq!([&read[0], &read[1]], [&bytes[10..20], &bytes[..]]);
        assert!(ours.read_elsewhere(&path("a file, with %20"), &ranges[4..5]).await.is_none());
        for name in ["a file, with %20", "none", ""] {
            for range in &ranges {
                let said = |result: Result<Bytes>| result.map_err(|error| error.to_string());
                let (got, want) = (
                    ours.get_range(&path(name), range.clone()).await,
                    theirs.get_range(&path(name), range.clone()).await,
                );
                assert_eq!(said(got), said(want), "{range:?} of '{name}'");
            }
            let said = |result: Result<Vec<Bytes>>| result.map_err(|error| error.to_string());
            for some in [&ranges[..4], &ranges[..5], &[]] {
                let (got, want) =
                    (ours.get_ranges(&path(name), some).await, theirs.get_ranges(&path(name), some).await);
                assert_eq!(said(got), said(want), "{some:?} of '{name}'");
            }
        }
        let name = path("a file, with %20");
        assert_eq!(ours.head(&name).await.unwrap(), theirs.head(&name).await.unwrap());
        assert!(ours.cached(&name, &GetOptions::new().with_head(true)).is_some());
        let tag = theirs.head(&name).await.unwrap().e_tag;
        for range in [None, Some(GetRange::Suffix(7)), Some(GetRange::Offset(299_000)), Some(GetRange::Bounded(3..90))]
        {
            for (wanted, unwanted) in [(None, None), (tag.clone(), None), (None, tag.clone()), (Some("0".into()), None)]
            {
                let options = GetOptions::new().with_range(range.clone()).with_if_match(wanted);
                let options = options.with_if_none_match(unwanted);
                let (got, want) = (ours.get_opts(&name, options.clone()).await, theirs.get_opts(&name, options).await);
                match (got, want) {
                    (Ok(got), Ok(want)) => {
                        assert_eq!((&got.meta, &got.range), (&want.meta, &want.range));
                        assert_eq!(got.bytes().await.unwrap(), want.bytes().await.unwrap());
                    }
                    (got, want) => {
                        assert_eq!(got.map(|_| ()).unwrap_err().to_string(), want.map(|_| ()).unwrap_err().to_string());
                    }
                }
            }
        }
    }
}
