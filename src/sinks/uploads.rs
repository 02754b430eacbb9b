//! Files of object stores: parts are uploaded as rows are encoded, and the file is there once its upload is completed,
//! which the commit does. Nothing is copied, and nothing can be read before.
//!
//! What is uploaded is known by data alone ([`UploadedFile`]), so that another process can complete it.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use datafusion::common::{Result, internal_datafusion_err, internal_err};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, PutPayload};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWrite;

use super::path_text;
use crate::runtime::block_on_io;

/// Bytes of a part when there is plenty of memory, and the least that stores take.
const PART_BYTES: usize = 10 << 20;
const MIN_PART_BYTES: usize = 5 << 20;
/// Parts of one file that are on their way at once.
const PARTS_AHEAD: usize = 2;
/// For how long a write that was cancelled waits until its uploads are given up.
const GIVING_UP: Duration = Duration::from_secs(2);

/// A file all of whose parts are uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadedFile {
    /// Its place in the store.
    #[serde(with = "path_text")]
    pub(super) place: Path,
    upload: MultipartId,
    parts: Vec<String>,
    pub(super) bytes: u64,
}

impl UploadedFile {
    /// Completes the upload: the file is there.
    pub(super) async fn complete(&self, store: &dyn MultipartStore) -> object_store::Result<()> {
        let parts = self.parts.iter().map(|id| PartId { content_id: id.clone() }).collect();
        store.complete_multipart(&self.place, &self.upload, parts).await.map(|_| ())
    }

    /// Gives the upload up, if that is possible.
    pub(super) async fn give_up(&self, store: &dyn MultipartStore) {
        give_up(store, &self.place, &self.upload).await;
    }
}

/// What stays is what a rule of the store removes.
async fn give_up(store: &dyn MultipartStore, place: &Path, upload: &MultipartId) {
    let _gone = store.abort_multipart(place, upload).await;
}

/// The uploads of a write, or of those of its tasks that run in one process.
pub(crate) struct Uploads {
    store: Arc<dyn MultipartStore>,
    /// Those that can be completed, in the order in which they ended.
    whole: Mutex<Vec<UploadedFile>>,
    /// Those that broke off.
    broken: Mutex<Vec<(Path, MultipartId)>>,
}

impl std::fmt::Debug for Uploads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploads").field("whole", &self.whole).field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Uploads {
    /// Into a store.
    pub(super) fn new(store: Arc<dyn MultipartStore>) -> Self {
        Self { store, whole: Mutex::default(), broken: Mutex::default() }
    }

    /// The store.
    pub(super) fn store(&self) -> &Arc<dyn MultipartStore> {
        &self.store
    }

    /// Takes the uploads of these files, and gives up all others.
    pub(super) async fn take(&self, places: &[Path]) -> Result<Vec<UploadedFile>> {
        // What was tried again has replaced the first try.
        let mut last: HashMap<Path, UploadedFile> = HashMap::new();
        let whole = std::mem::take(&mut *self.whole.lock());
        let replaced: Vec<_> = whole.into_iter().filter_map(|file| last.insert(file.place.clone(), file)).collect();
        let wanted: Vec<_> = places.iter().filter_map(|place| last.remove(place)).collect();
        self.whole.lock().extend(replaced.into_iter().chain(last.into_values()));
        self.abort().await;
        if wanted.len() != places.len() {
            let number = wanted.len();
            self.whole.lock().extend(wanted);
            return internal_err!("{} files were written, but {number} uploads are there", places.len());
        }
        Ok(wanted)
    }

    /// Takes the last upload to a place, which another process is to complete.
    pub(crate) fn hand_over(&self, place: &Path) -> Result<UploadedFile> {
        let mut whole = self.whole.lock();
        let last = whole.iter().rposition(|file| file.place == *place);
        last.map(|at| whole.remove(at)).ok_or_else(|| internal_datafusion_err!("'{place}' was not uploaded"))
    }

    /// Takes over what another process has uploaded.
    pub(crate) fn take_over(&self, file: UploadedFile) {
        self.whole.lock().push(file);
    }

    /// Gives up what was not taken.
    pub(super) async fn abort(&self) {
        give_up_all(&self.store, self.left()).await;
    }

    fn left(&self) -> Vec<(Path, MultipartId)> {
        let whole = std::mem::take(&mut *self.whole.lock());
        let mut left = std::mem::take(&mut *self.broken.lock());
        left.extend(whole.into_iter().map(|file| (file.place, file.upload)));
        left
    }
}

async fn give_up_all(store: &Arc<dyn MultipartStore>, uploads: Vec<(Path, MultipartId)>) {
    for (place, upload) in uploads {
        give_up(store.as_ref(), &place, &upload).await;
    }
}

/// What a write leaves that was cancelled is given up, if that does not take long.
impl Drop for Uploads {
    fn drop(&mut self) {
        let left = self.left();
        if !left.is_empty() {
            let store = Arc::clone(&self.store);
            let given_up = async move { Ok(tokio::time::timeout(GIVING_UP, give_up_all(&store, left)).await) };
            // Nothing more can be done if this fails.
            let _given_up = block_on_io(given_up);
        }
    }
}

/// Bytes of a part for a writer that may buffer `buffer_bytes`.
fn part_bytes(buffer_bytes: usize) -> usize {
    (buffer_bytes / 4).clamp(MIN_PART_BYTES, PART_BYTES)
}

/// Bytes that an upload holds at most for such a writer.
pub(super) fn upload_bytes(buffer_bytes: usize) -> usize {
    (PARTS_AHEAD + 1) * part_bytes(buffer_bytes)
}

/// A part on its way: its number, and what the store calls it then.
type Part = BoxFuture<'static, object_store::Result<(usize, PartId)>>;

/// A file that is uploaded. Shutting it down waits for its parts, and leaves its upload to be completed.
pub(super) struct Upload {
    uploads: Arc<Uploads>,
    /// What is known of it, until it ends.
    file: Option<UploadedFile>,
    part: Vec<u8>,
    part_bytes: usize,
    under_way: FuturesUnordered<Part>,
}

impl Upload {
    /// Begins an upload to `place` for a writer that may buffer `buffer_bytes`.
    pub(super) async fn begin(place: Path, uploads: Arc<Uploads>, buffer_bytes: usize) -> Result<Self> {
        let upload = uploads.store.create_multipart(&place).await?;
        let file = Some(UploadedFile { place, upload, parts: Vec::new(), bytes: 0 });
        let (part_bytes, under_way) = (part_bytes(buffer_bytes), FuturesUnordered::new());
        Ok(Self { uploads, file, part: Vec::new(), part_bytes, under_way })
    }

    fn send_part(&mut self) -> io::Result<()> {
        let part = PutPayload::from(std::mem::take(&mut self.part));
        let Some(file) = &mut self.file else { return Err(io::Error::other("an upload that has ended")) };
        let number = file.parts.len();
        file.parts.push(String::new());
        let (store, place, upload) = (Arc::clone(&self.uploads.store), file.place.clone(), file.upload.clone());
        let sent = async move { Ok((number, store.put_part(&place, &upload, number, part).await?)) };
        self.under_way.push(sent.boxed());
        Ok(())
    }

    /// Waits until no more than `most` parts are under way. Others go on as long as somebody asks.
    fn poll_parts(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<()>> {
        loop {
            match Pin::new(&mut self.under_way).poll_next(context) {
                Poll::Ready(Some(done)) => {
                    let (number, part) = done.map_err(io::Error::other)?;
                    if let Some(file) = &mut self.file {
                        file.parts[number] = part.content_id;
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending if self.under_way.len() <= most => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for Upload {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.part.len() == self.part_bytes {
            ready!(self.poll_parts(context, PARTS_AHEAD - 1))?;
            self.send_part()?;
            // It begins when it is first asked for.
            ready!(self.poll_parts(context, PARTS_AHEAD))?;
        }
        let taken = bytes.len().min(self.part_bytes - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        if let Some(file) = &mut self.file {
            file.bytes += taken as u64;
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.part.is_empty() {
            self.send_part()?;
        }
        ready!(self.poll_parts(context, 0))?;
        if let Some(file) = self.file.take() {
            self.uploads.whole.lock().push(file);
        }
        Poll::Ready(Ok(()))
    }
}

/// An upload that broke off is given up with the others.
impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.uploads.broken.lock().push((file.place, file.upload));
        }
    }
}
