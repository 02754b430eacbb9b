//! Files of an object store as they were when they were listed. A request costs a round trip there: small files come
//! whole, with one request for all that is asked of them, and those that are read next are asked for while the present
//! ones are decoded.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::execution::object_store::ObjectStoreUrl;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use parking_lot::Mutex;

pub(crate) use self::bodies::{Bodies, ReadingFile};
use self::parts::{Asked, Part, Parts, bytes_of_ranges};
use crate::physical::{is_as_listed, shown_root};
use crate::runtime::Drivers;
use crate::store::WorkingSet;

mod bodies;
mod parts;

/// Files of at most so many bytes come whole.
const SMALL_BYTES: u64 = 1 << 20;
/// Files that one reader has asked for beside the one that it reads.
const AHEAD: usize = 32;

/// Whether files of a store cost a round trip, and come whole if they are small.
pub(crate) fn is_far(url: &ObjectStoreUrl) -> bool {
    !url.as_str().starts_with("file:")
}

/// Whether all of a file comes with the first request for any of it.
pub(crate) fn is_small(file: &ObjectMeta) -> bool {
    file.size <= SMALL_BYTES
}

/// A store in which listed files are what they were when they were listed, or an error. Others are as ever.
pub(crate) struct PinnedStore {
    inner: Arc<dyn ObjectStore>,
    /// What stands before a location when it is shown.
    root: String,
    files: Arc<Pinned>,
    bodies: Bodies,
    /// What has failed ahead of who wants it, and is told them.
    failed: Failed,
    ahead: Option<Ahead>,
}

/// Errors by the files that they are of, and where in them. Clones share them.
type Failed = Arc<Mutex<HashMap<(Path, u64), Error>>>;

/// Files in the order in which they are read.
#[derive(Default)]
struct Pinned {
    files: Vec<ObjectMeta>,
    places: HashMap<Path, usize>,
}

impl Pinned {
    fn new(files: impl Iterator<Item = ObjectMeta>) -> Self {
        let files: Vec<ObjectMeta> = files.collect();
        let places = files.iter().enumerate().map(|(place, file)| (file.location.clone(), place)).collect();
        Self { files, places }
    }
}

/// Reading ahead of those who ask.
struct Ahead {
    /// Whether a file was asked for, ahead or not.
    asked: Vec<AtomicBool>,
    under_way: Mutex<Drivers<()>>,
    reserved: Mutex<WorkingSet>,
    max_bytes: usize,
    parts: Mutex<Parts>,
}

impl fmt::Debug for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedStore({})", self.inner)
    }
}

impl fmt::Display for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl Ahead {
    fn spawn(&self, asking: impl Future<Output = ()> + Send + 'static) {
        let mut under_way = self.under_way.lock();
        // What has ended is forgotten; a failure comes again to who asks for the bytes.
        while let Some(Some(_ended)) = under_way.next().now_or_never() {}
        under_way.spawn(async move {
            asking.await;
            Ok(())
        });
    }
}

impl PinnedStore {
    /// `store` with these files, of which `bodies` may have some already.
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        url: &ObjectStoreUrl,
        files: impl Iterator<Item = ObjectMeta>,
        bodies: Bodies,
    ) -> Self {
        Self {
            inner: store,
            root: shown_root(url),
            files: Arc::new(Pinned::new(files)),
            bodies,
            failed: Failed::default(),
            ahead: None,
        }
    }

    /// The same for who reads these of its files in about this order: at most `max_bytes` are asked for ahead, as far
    /// as memory has room for them.
    pub(crate) fn reading_ahead(
        &self,
        files: impl Iterator<Item = ObjectMeta>,
        reserved: WorkingSet,
        max_bytes: usize,
    ) -> Self {
        let files = Arc::new(Pinned::new(files));
        let ahead = Ahead {
            asked: files.files.iter().map(|_| AtomicBool::new(false)).collect(),
            under_way: Mutex::new(Drivers::start(std::iter::empty::<std::future::Ready<_>>())),
            reserved: Mutex::new(reserved),
            max_bytes,
            parts: Mutex::default(),
        };
        Self { files, failed: Failed::default(), ahead: Some(ahead), ..self.clone_without_ahead() }
    }

    fn clone_without_ahead(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            root: self.root.clone(),
            files: Arc::clone(&self.files),
            bodies: self.bodies.clone(),
            failed: Arc::clone(&self.failed),
            ahead: None,
        }
    }

    /// The reading of a file.
    pub(crate) fn reading(&self, file: &Path) -> ReadingFile {
        ReadingFile { bodies: self.bodies.clone(), file: file.clone() }
    }

    /// All bytes of a small file. Who asks at the same time waits for the same request.
    async fn body(&self, file: &ObjectMeta) -> Result<Bytes> {
        let cell = self.bodies.of(file);
        let bytes = cell.get_or_try_init(|| async {
            self.failed_ahead(&file.location, 0)?;
            self.new_body(file).await
        });
        bytes.await.cloned()
    }

    async fn new_body(&self, file: &ObjectMeta) -> Result<Bytes> {
        let bytes = self.pinned(file, GetOptions::default()).await?.bytes().await?;
        match bytes.len() as u64 == file.size {
            true => Ok(bytes),
            false => Err(self.has_changed(file, &format!("came with {} bytes", bytes.len()))),
        }
    }

    /// What is asked for ahead. Whoever wants it next is told why it fails.
    async fn ahead<T>(&self, file: &Path, at: u64, asked: impl Future<Output = Result<T>>) -> Result<T> {
        asked.await.map_err(|e| {
            self.failed.lock().insert((file.clone(), at), e);
            Error::Generic { store: "object store", source: "who wants it is told why".into() }
        })
    }

    /// Fails where asking for a file ahead has: all tries are made then.
    fn failed_ahead(&self, file: &Path, at: u64) -> Result<()> {
        self.failed.lock().remove(&(file.clone(), at)).map_or(Ok(()), Err)
    }

    /// The bytes of ranges of a file, with few requests.
    async fn ranges(&self, file: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let request = |range: Range<u64>| async move {
            let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
            Ok(self.get_opts(file, options).await?.into_stream())
        };
        bytes_of_ranges(ranges, request).await
    }

    /// An answer of the store about this very file.
    async fn pinned(&self, file: &ObjectMeta, options: GetOptions) -> Result<GetResult> {
        // Weak tags match nothing, and lists of Azure write others than it takes.
        let tag = file.e_tag.clone().filter(|tag| tag.starts_with('"'));
        let options = GetOptions { if_match: options.if_match.or(tag), ..options };
        match self.inner.get_opts(&file.location, options).await {
            Ok(result) if is_as_listed(file, &result.meta) => Ok(result),
            Ok(result) => {
                let (size, time) = (result.meta.size, result.meta.last_modified);
                Err(self.has_changed(file, &format!("has {size} of {time}")))
            }
            Err(Error::Precondition { .. }) => Err(self.has_changed(file, "is another one now")),
            Err(Error::NotFound { .. }) => {
                let (root, path) = (&self.root, &file.location);
                let source =
                    format!("file '{root}{path}' is gone since the query was planned; run the query again").into();
                Err(Error::Generic { store: "object store", source })
            }
            Err(e) => Err(e),
        }
    }

    fn has_changed(&self, file: &ObjectMeta, now: &str) -> Error {
        let ObjectMeta { location, size, last_modified, .. } = file;
        let source = format!(
            "file '{}{location}' has changed since the query was planned: it had {size} bytes of {last_modified}, and \
             {now}; run the query again",
            self.root
        );
        Error::Generic { store: "object store", source: source.into() }
    }

    /// Asks for the files behind `place`, so that they are there when somebody wants them.
    fn ask_ahead(&self, place: usize) {
        let Some(ahead) = &self.ahead else { return };
        ahead.asked[place].store(true, Relaxed);
        // Parts are looked at first, as everywhere: whoever holds them may wait for what is reserved.
        let mut held = self.bodies.bytes() + ahead.parts.lock().bytes;
        let mut reserved = ahead.reserved.lock();
        for next in (place + 1..self.files.files.len()).take(AHEAD) {
            let file = &self.files.files[next];
            if !is_small(file) || ahead.asked[next].load(Relaxed) {
                continue;
            }
            held += file.size as usize;
            if held > ahead.max_bytes || !reserved.resize_within_what_is_free(held) {
                break;
            }
            ahead.asked[next].store(true, Relaxed);
            // Who reads it first fills the same cell, and then nothing is asked for.
            let (store, file, cell) = (self.clone_without_ahead(), file.clone(), self.bodies.of(file));
            ahead.spawn(async move {
                let asked = cell.get_or_try_init(|| store.ahead(&file.location, 0, store.new_body(&file)));
                let _told_to_who_wants_it = asked.await;
            });
        }
    }

    /// What is known of a file that is read.
    pub(crate) fn file(&self, file: &Path) -> Option<&ObjectMeta> {
        self.files.places.get(file).map(|place| &self.files.files[*place])
    }

    /// The large files that are read behind this one, in their order.
    pub(crate) fn large_files_behind(&self, file: &Path) -> impl Iterator<Item = &ObjectMeta> {
        let first = self.files.places.get(file).map_or(self.files.files.len(), |place| place + 1);
        self.files.files[first..].iter().filter(|file| !is_small(file))
    }

    /// Asks for ranges of a large file that somebody will want soon, if there is room: for those that are not known
    /// yet.
    pub(crate) fn ask_for(&self, file: &Path, ranges: Vec<Range<u64>>) {
        let Some(ahead) = &self.ahead else { return };
        let mut parts = ahead.parts.lock();
        let ranges = parts.unknown(file, ranges);
        let bytes = ranges.iter().map(|range| range.end.saturating_sub(range.start) as usize).sum();
        if ranges.is_empty() || bytes > ahead.max_bytes / 2 || !parts.has_room(bytes, ahead.max_bytes) {
            return;
        }
        let held = self.bodies.bytes() + parts.bytes + bytes;
        if !ahead.reserved.lock().resize_within_what_is_free(held) {
            return;
        }
        let part = parts.add(file, ranges, bytes);
        let store = self.clone_without_ahead();
        ahead.spawn(async move {
            let Part { file, ranges, bytes } = part.as_ref();
            let asked = bytes.get_or_try_init(|| store.ahead(file, start_of(ranges), store.ranges(file, ranges)));
            let _told_to_who_wants_it = asked.await;
        });
    }

    /// The bytes of ranges, of each that was asked for ahead.
    pub(crate) fn asked_for(
        &self,
        file: &Path,
        ranges: &[Range<u64>],
    ) -> Vec<Option<BoxFuture<'static, Result<Bytes>>>> {
        let Some(ahead) = &self.ahead else { return ranges.iter().map(|_| None).collect() };
        let taken = ahead.parts.lock().take(file, ranges);
        let bytes_of = |Asked { part, place }| {
            let store = self.clone_without_ahead();
            let bytes = async move {
                let Part { file, ranges, bytes } = part.as_ref();
                let asked = || async {
                    store.failed_ahead(file, start_of(ranges))?;
                    store.ranges(file, ranges).await
                };
                Ok(bytes.get_or_try_init(asked).await?[place].clone())
            };
            bytes.boxed()
        };
        taken.into_iter().map(|asked| asked.map(bytes_of)).collect()
    }

    /// A part of a small file, as if the store had been asked for it.
    async fn part(&self, file: &ObjectMeta, options: &GetOptions) -> Result<GetResult> {
        let bytes = self.body(file).await?;
        let range = match &options.range {
            Some(range) => range
                .as_range(file.size)
                .map_err(|source| Error::Generic { store: "object store", source: Box::new(source) })?,
            None => 0..file.size,
        };
        let part = bytes.slice(range.start as usize..range.end as usize);
        let payload = GetResultPayload::Stream(stream::once(std::future::ready(Ok(part))).boxed());
        Ok(GetResult { payload, meta: file.clone(), range, attributes: Attributes::default() })
    }
}

fn start_of(ranges: &[Range<u64>]) -> u64 {
    ranges.first().map_or(0, |range| range.start)
}

#[async_trait]
impl ObjectStore for PinnedStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(place) = self.files.places.get(location).copied() else {
            return self.inner.get_opts(location, options).await;
        };
        let file = &self.files.files[place];
        if !is_small(file) || options.head || options.version.is_some() {
            return self.pinned(file, options).await;
        }
        self.ask_ahead(place);
        self.part(file, &options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.ranges(location, ranges).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use futures::future::try_join_all;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::bodies::KEPT_FILES;
    use super::*;

    async fn pinned(bytes: &'static [u8]) -> (Arc<InMemory>, PinnedStore, Path) {
        let (inner, path) = (Arc::new(InMemory::new()), Path::from("a/b"));
        inner.put(&path, bytes.into()).await.unwrap();
        let file = inner.head(&path).await.unwrap();
        let url = ObjectStoreUrl::parse("memory://").unwrap();
        let store = PinnedStore::new(Arc::clone(&inner) as _, &url, std::iter::once(file), Bodies::default());
        (inner, store, path)
    }

    #[tokio::test]
    async fn parts_of_a_small_file_are_those_of_the_store() {
        let (inner, store, path) = pinned(b"0123456789").await;
        for range in [0..10, 0..0, 3..7, 9..10] {
            let expected = inner.get_range(&path, range.clone()).await;
            assert_eq!(store.get_range(&path, range.clone()).await.ok(), expected.ok(), "{range:?}");
        }
        let suffix = GetOptions { range: Some(object_store::GetRange::Suffix(4)), ..GetOptions::default() };
        assert_eq!(store.get_opts(&path, suffix).await.unwrap().bytes().await.unwrap(), "6789");
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "0123456789");
        drop(store.reading(&path));
        for number in 0..KEPT_FILES {
            drop(store.reading(&Path::from(format!("other-{number}"))));
        }
        assert_eq!(store.bodies.bytes(), 0, "what was read is let go");
        assert!(matches!(store.get(&Path::from("other")).await, Err(Error::NotFound { .. })));
    }

    #[tokio::test]
    async fn parts_of_large_files_are_there_when_they_were_asked_for() {
        let (inner, path) = (Arc::new(InMemory::new()), Path::from("large"));
        let bytes: Vec<u8> = (0..3 << 20).map(|number: u32| number as u8).collect();
        inner.put(&path, bytes.clone().into()).await.unwrap();
        let file = inner.head(&path).await.unwrap();
        let url = ObjectStoreUrl::parse("memory://").unwrap();
        let store = PinnedStore::new(Arc::clone(&inner) as _, &url, std::iter::once(file.clone()), Bodies::default());
        let blocks = crate::store::tests::store(1 << 20);
        let reserved = blocks.working_set(&Arc::default(), 0).unwrap();
        let store = store.reading_ahead(std::iter::once(file), reserved, 3000);
        let ranges = |first: u64| vec![first..first + 400, first + 1000..first + 1600];
        for first in [0, 10_000, 20_000, 30_000] {
            store.ask_for(&path, ranges(first));
        }
        let is_there = |ranges: &[Range<u64>]| store.asked_for(&path, ranges).iter().any(Option::is_some);
        assert!(!is_there(&ranges(30_000)), "there is room for three of them");
        let found = try_join_all(store.asked_for(&path, &ranges(20_000)).into_iter().flatten()).await.unwrap();
        assert_eq!(found, [&bytes[20_000..20_400], &bytes[21_000..21_600]]);
        assert!(!is_there(&ranges(20_000)), "it was taken");
        store.ask_for(&path, ranges(20_000));
        assert!(!is_there(&ranges(20_000)), "who is behind does not ask for it again");
        // Ranges that came together are taken one by one; one that was not asked for is not there.
        for range in [10_000..10_400, 11_000..11_600] {
            let mut found = store.asked_for(&path, &[range.clone(), 50_000 + range.start..60_000]);
            assert!(found.pop().unwrap().is_none());
            assert_eq!(found.pop().unwrap().unwrap().await.unwrap(), bytes[range.start as usize..range.end as usize]);
        }
        for first in 100_000..100_100 {
            store.asked_for(&path, &ranges(first));
        }
        for first in [200_000, 300_000, 400_000] {
            store.ask_for(&path, ranges(first));
            assert!(is_there(&ranges(first)), "what nobody has wanted makes room");
        }
        let large = vec![500_000..501_000, 502_000..503_000];
        store.ask_for(&path, large.clone());
        assert!(!is_there(&large), "it is too much");
    }

    #[tokio::test]
    async fn another_file_in_the_place_is_an_error() {
        let (inner, store, path) = pinned(b"0123456789").await;
        inner.put(&path, "9876543210".into()).await.unwrap();
        let error = store.get_range(&path, 1..3).await.unwrap_err().to_string();
        assert!(error.contains("a/b' has changed since the query was planned"), "{error}");
        inner.delete(&path).await.unwrap();
        let error = store.get_range(&path, 1..3).await.unwrap_err().to_string();
        assert!(error.contains("a/b' is gone since the query was planned"), "{error}");
    }
}
