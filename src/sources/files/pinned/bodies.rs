//! Bytes of small files, which come whole.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// Small files that were read and are kept for a moment.
pub(super) const KEPT_FILES: usize = 4;

/// Bytes of small files between the request for them and the end of their reading. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Bodies(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    bodies: HashMap<Path, Body>,
    /// Those that were read, the oldest first. A decoder may open a file twice.
    read: VecDeque<Path>,
}

#[derive(Clone)]
struct Body {
    file: ObjectMeta,
    bytes: Arc<OnceCell<Bytes>>,
}

impl fmt::Debug for Bodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bodies({})", self.0.lock().bodies.len())
    }
}

impl Bodies {
    /// Where the bytes of a file come, or are.
    pub(super) fn of(&self, file: &ObjectMeta) -> Arc<OnceCell<Bytes>> {
        let bodies = &mut self.0.lock().bodies;
        let body = bodies.entry(file.location.clone()).or_insert_with(|| Body::of(file));
        if body.file != *file {
            *body = Body::of(file);
        }
        Arc::clone(&body.bytes)
    }

    /// Soon lets go of a file that was read.
    pub(super) fn is_read(&self, file: &Path) {
        let kept = &mut *self.0.lock();
        kept.read.retain(|read| read != file);
        kept.read.push_back(file.clone());
        if kept.read.len() > KEPT_FILES
            && let Some(oldest) = kept.read.pop_front()
        {
            kept.bodies.remove(&oldest);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.lock().bodies.values().map(|body| body.file.size as usize).sum()
    }
}

/// Somebody reads a file. Its bytes are let go soon after this drops.
#[derive(Debug)]
pub(crate) struct ReadingFile {
    pub(super) bodies: Bodies,
    pub(super) file: Path,
}

impl Drop for ReadingFile {
    fn drop(&mut self) {
        self.bodies.is_read(&self.file);
    }
}

impl Body {
    fn of(file: &ObjectMeta) -> Self {
        Self { file: file.clone(), bytes: Arc::default() }
    }
}
