//! Uploads that come to be files, as often as it takes: an upload is completed once, whoever does it.

use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use futures::{FutureExt, StreamExt, stream};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::time::sleep;

use super::uploads::UploadedFile;
use super::write_note::{Found, Note, NotePlace};
use crate::error::ErrorContext;

/// Uploads that are completed at once.
const COMPLETED_AT_ONCE: usize = 16;

/// How often it is tried to remove an object, or to see one, and the first pause between.
const TRIES: usize = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Completes these uploads, all that can be; fails with the first error.
pub(super) async fn complete_all(store: &dyn MultipartStore, files: &[UploadedFile]) -> Result<()> {
    let completions: Vec<_> = files.iter().map(|file| completed(store, file).boxed()).collect();
    let done: Vec<_> = stream::iter(completions).buffered(COMPLETED_AT_ONCE).collect().await;
    done.into_iter().collect()
}

/// Does what is noted and was not done. Whether it could be: uploads may be gone, of which there is no file.
pub(super) async fn finish(
    notes: &NotePlace<'_>,
    objects: &dyn ObjectStore,
    store: &dyn MultipartStore,
    found: &Found,
) -> Result<bool> {
    let Some(pending) = &found.note.pending else { return Ok(true) };
    let completions: Vec<_> = pending.uploads.iter().map(|file| is_there(objects, store, file).boxed()).collect();
    let finishing =
        || format!("completing the write that is noted in '{}', with which the next run of it goes on", notes.path);
    // All come to their end: one that is cut off is neither there nor to be completed for a while.
    let all: Vec<Result<bool>> = stream::iter(completions).buffer_unordered(COMPLETED_AT_ONCE).collect().await;
    let all: Vec<bool> = all.into_iter().collect::<Result<_>>().while_doing(finishing)?;
    if all.contains(&false) {
        // A run that was stopped does not complete the others later.
        for file in &pending.uploads {
            file.give_up(store).await;
        }
        return Ok(false);
    }
    for old in &pending.old {
        remove_old(objects, &Path::parse(old)?).await.while_doing(finishing)?;
    }
    // Where this fails somebody else has done the same.
    notes.put(&Note { pending: None, ..found.note.clone() }, Some(found)).await?;
    Ok(true)
}

async fn completed(store: &dyn MultipartStore, file: &UploadedFile) -> Result<()> {
    let done = file.complete(store).await.map_err(DataFusionError::from);
    done.while_doing(|| format!("completing '{}'", file.place))
}

/// Completes an upload, unless somebody has done that. Whether the file is there then.
async fn is_there(objects: &dyn ObjectStore, store: &dyn MultipartStore, file: &UploadedFile) -> Result<bool> {
    let Err(e) = file.complete(store).await else { return Ok(true) };
    for tries in 0..TRIES {
        match objects.head(&file.place).await {
            Ok(there) if there.size == file.bytes => return Ok(true),
            // Somebody else may be about to complete it.
            Ok(_) | Err(Error::NotFound { .. }) if tries + 1 < TRIES => sleep(FIRST_PAUSE * (1 << tries)).await,
            _ => break,
        }
    }
    match e {
        Error::NotFound { .. } | Error::PermissionDenied { .. } => Ok(false),
        e => Err(DataFusionError::from(e)).while_doing(|| format!("completing '{}'", file.place)),
    }
}

/// Removes what new files have replaced.
pub(super) async fn remove_old(store: &dyn ObjectStore, path: &Path) -> Result<()> {
    let removed = remove(store, path).await.map_err(DataFusionError::from);
    removed.while_doing(|| format!("removing '{path}', beside which all new files can be read now"))
}

/// Removes an object, which may be gone already. The client does not ask again where a connection broke, since it does
/// not know that removing twice is removing once.
pub(super) async fn remove(store: &dyn ObjectStore, path: &Path) -> object_store::Result<()> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match store.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => return Ok(()),
            Err(_) => sleep(pause).await,
        }
        pause *= 2;
    }
    store.delete(path).await
}
