//! [`InOneProcess`]: uploads to a store that was registered, of which nothing more is known than that it takes them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, PutResult, Result};
use parking_lot::Mutex;

/// An upload, which one after the other may use.
type Open = Arc<tokio::sync::Mutex<Box<dyn MultipartUpload>>>;

/// Keeps the uploads to a store. What they are called means nothing to another process.
pub(super) struct InOneProcess {
    store: Arc<dyn ObjectStore>,
    open: Mutex<HashMap<MultipartId, Open>>,
}

impl InOneProcess {
    pub(super) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, open: Mutex::default() }
    }

    fn open(&self, path: &Path, id: &MultipartId) -> Result<Open> {
        let open = self.open.lock().get(id).map(Arc::clone);
        let gone = || object_store::Error::NotFound { path: path.to_string(), source: "its upload has ended".into() };
        open.ok_or_else(gone)
    }
}

impl fmt::Debug for InOneProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InOneProcess").field(&self.store).finish()
    }
}

#[async_trait]
impl MultipartStore for InOneProcess {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let upload = self.store.put_multipart(path).await?;
        let id = uuid::Uuid::new_v4().simple().to_string();
        self.open.lock().insert(id.clone(), Arc::new(tokio::sync::Mutex::new(upload)));
        Ok(id)
    }

    /// Parts are numbered as they are first asked for.
    async fn put_part(&self, path: &Path, id: &MultipartId, _number: usize, data: PutPayload) -> Result<PartId> {
        let part = self.open(path, id)?.lock().await.put_part(data);
        part.await?;
        Ok(PartId { content_id: String::new() })
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, _parts: Vec<PartId>) -> Result<PutResult> {
        let done = self.open(path, id)?.lock().await.complete().await?;
        self.open.lock().remove(id);
        Ok(done)
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let open = self.open(path, id)?;
        self.open.lock().remove(id);
        open.lock().await.abort().await
    }
}
