//! Files of object stores: parts are uploaded as rows are encoded, and the file is there once its upload is completed,
//! which the commit does. Nothing is copied, and nothing can be read before.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, internal_err};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt, stream};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, UploadPart};
use parking_lot::Mutex;
use tokio::io::AsyncWrite;

use crate::error::ErrorContext;
use crate::runtime::block_on_io;

/// Bytes of a part when there is plenty of memory, and the least that stores take.
const PART_BYTES: usize = 10 << 20;
const MIN_PART_BYTES: usize = 5 << 20;
/// Parts of one file that are on their way at once.
const PARTS_AHEAD: usize = 2;
/// For how long a write that was cancelled waits until its uploads are given up.
const GIVING_UP: Duration = Duration::from_secs(2);
/// Uploads that are completed at once.
const COMPLETED_AT_ONCE: usize = 16;

/// Uploads that may be completed: the files of a write.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    open: Mutex<Vec<(Path, Box<dyn MultipartUpload>)>>,
    /// How many bytes each file has.
    sizes: Mutex<HashMap<Path, u64>>,
}

impl Uploads {
    /// Completes the uploads of these files, and gives up all others. Names in `completed` what can be read now, also
    /// where it fails: of a file whose answer was lost, it is not known.
    pub(super) async fn complete(&self, files: &[Path], completed: &mut Vec<Path>) -> Result<()> {
        let (mut wanted, mut others) = (Vec::new(), Vec::new());
        for (path, upload) in self.take() {
            // What was tried again has replaced the first try.
            let is_wanted = files.contains(&path) && wanted.iter().all(|(known, _)| *known != path);
            if is_wanted { &mut wanted } else { &mut others }.push((path, upload));
        }
        if wanted.len() != files.len() {
            return internal_err!("{} files were written, but {} uploads are there", files.len(), wanted.len());
        }
        let completions: Vec<_> =
            wanted.into_iter().map(|(path, upload)| completed_upload(path, upload).boxed()).collect();
        let mut completions = stream::iter(completions).buffer_unordered(COMPLETED_AT_ONCE);
        let mut failed = None;
        while let Some((done, path, upload)) = completions.next().await {
            completed.push(path.clone());
            if let Err(e) = done {
                others.push((path, upload));
                failed = failed.or(Some(e));
            }
        }
        drop(completions);
        abort(others).await;
        failed.map_or(Ok(()), Err)
    }

    /// How many bytes a file has that was uploaded.
    pub(super) fn size(&self, file: &Path) -> u64 {
        self.sizes.lock().get(file).copied().unwrap_or_default()
    }

    /// Gives up what was not completed.
    pub(super) async fn abort(&self) {
        abort(self.take()).await;
    }

    /// The last uploads first.
    fn take(&self) -> Vec<(Path, Box<dyn MultipartUpload>)> {
        let mut uploads = std::mem::take(&mut *self.open.lock());
        uploads.reverse();
        uploads
    }
}

/// What a write leaves that was cancelled is given up, if that does not take long.
impl Drop for Uploads {
    fn drop(&mut self) {
        let left = self.take();
        if !left.is_empty() {
            let given_up = async move { Ok(tokio::time::timeout(GIVING_UP, abort(left)).await) };
            // Nothing more can be done if this fails.
            let _given_up = block_on_io(given_up);
        }
    }
}

async fn completed_upload(
    path: Path,
    mut upload: Box<dyn MultipartUpload>,
) -> (Result<()>, Path, Box<dyn MultipartUpload>) {
    let done = upload.complete().await.map(|_| ()).map_err(DataFusionError::from);
    (done.while_doing(|| format!("completing '{path}'")), path, upload)
}

async fn abort(uploads: Vec<(Path, Box<dyn MultipartUpload>)>) {
    for (_, mut upload) in uploads {
        // What stays is what a rule of the store removes.
        let _gone = upload.abort().await;
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

/// A file that is uploaded. Shutting it down waits for its parts, and leaves its upload to be completed.
#[derive(Debug)]
pub(super) struct Upload {
    path: Path,
    uploads: Arc<Uploads>,
    upload: Option<Box<dyn MultipartUpload>>,
    size: u64,
    part: Vec<u8>,
    part_bytes: usize,
    under_way: FuturesUnordered<UploadPart>,
}

impl Upload {
    /// Begins an upload to `path` for a writer that may buffer `buffer_bytes`.
    pub(super) async fn begin(
        store: &dyn ObjectStore,
        path: Path,
        uploads: Arc<Uploads>,
        buffer_bytes: usize,
    ) -> Result<Self> {
        let upload = store.put_multipart(&path).await?;
        let part_bytes = part_bytes(buffer_bytes);
        Ok(Self {
            path,
            uploads,
            upload: Some(upload),
            size: 0,
            part: Vec::new(),
            part_bytes,
            under_way: FuturesUnordered::new(),
        })
    }

    fn send_part(&mut self) -> io::Result<()> {
        let part = std::mem::take(&mut self.part);
        match &mut self.upload {
            Some(upload) => self.under_way.push(upload.put_part(PutPayload::from(part))),
            None => return Err(io::Error::other(format!("the upload of '{}' has ended", self.path))),
        }
        Ok(())
    }

    /// Waits until no more than `most` parts are under way. Others go on as long as somebody asks.
    fn poll_parts(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<()>> {
        loop {
            match Pin::new(&mut self.under_way).poll_next(context) {
                Poll::Ready(Some(done)) => done.map_err(io::Error::other)?,
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
        self.size += taken as u64;
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
        if let Some(upload) = self.upload.take() {
            self.uploads.open.lock().push((self.path.clone(), upload));
            self.uploads.sizes.lock().insert(self.path.clone(), self.size);
        }
        Poll::Ready(Ok(()))
    }
}

/// An upload that broke off is given up with the others.
impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.uploads.open.lock().insert(0, (self.path.clone(), upload));
        }
    }
}
