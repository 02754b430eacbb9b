//! Uploads that come to be files, as often as it takes: an upload is completed once, whoever does it.

use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_err};
use futures::{FutureExt, StreamExt, stream};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::time::sleep;

use super::uploads::UploadedFile;
use super::write_note::{Found, Note, NotePlace, Pending};
use crate::error::ErrorContext;

/// Uploads that are completed at once.
const COMPLETED_AT_ONCE: usize = 16;

/// How often it is tried to remove an object, and the first pause between.
const TRIES: usize = 5;
/// How often it is looked whether a run that may be at work has completed an upload: for some three minutes, as stores
/// may take so long for a large one.
const SEEN_TRIES: usize = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Completes these uploads, all that can be; fails with the first error.
pub(super) async fn complete_all(store: &dyn MultipartStore, files: &[UploadedFile]) -> Result<()> {
    let completions: Vec<_> = files.iter().map(|file| completed(store, file).boxed()).collect();
    let done: Vec<_> = stream::iter(completions).buffered(COMPLETED_AT_ONCE).collect().await;
    done.into_iter().collect()
}

/// Does what is noted and was not done. Whether it could be: uploads may be gone, of which there is no file, and others
/// may have given it up. `old` lists what a write that replaces others finds when its files are there.
pub(super) async fn finish(
    notes: &NotePlace<'_>,
    objects: &dyn ObjectStore,
    store: &dyn MultipartStore,
    found: &Found,
    old: impl AsyncFnOnce() -> Result<Vec<Path>>,
) -> Result<bool> {
    let pending = match &found.note {
        Note::Complete { .. } => return Ok(true),
        Note::Abandoned { .. } => return Ok(false),
        Note::Pending { pending } => pending,
    };
    let looks = if found.is_new() { SEEN_TRIES } else { 1 };
    let completions: Vec<_> =
        pending.uploads.iter().map(|file| is_there(objects, store, file, looks).boxed()).collect();
    let finishing =
        || format!("completing the write that is noted in '{}', with which the next run of it goes on", notes.path);
    // All come to their end: one that is cut off is neither there nor to be completed for a while.
    let all: Vec<Result<bool>> = stream::iter(completions).buffer_unordered(COMPLETED_AT_ONCE).collect().await;
    let all: Vec<bool> = all.into_iter().collect::<Result<_>>().while_doing(finishing)?;
    if all.contains(&false) {
        // A run that was stopped learns of it before it ends.
        let abandoned = Note::Abandoned { abandoned: pending.run.clone() };
        if notes.put(&abandoned, Some(found)).await? {
            for file in &pending.uploads {
                file.give_up(store).await;
            }
        }
        return Ok(false);
    }
    let mut replaced = pending.old.iter().map(Path::parse).collect::<Result<Vec<_>, _>>()?;
    replaced.extend(old().await.while_doing(finishing)?);
    replaced.retain(|old| pending.uploads.iter().all(|file| file.place != *old));
    for old in &replaced {
        remove_old(objects, old).await.while_doing(finishing)?;
    }
    is_complete(notes, objects, pending, found).await
}

/// Notes that a run is complete. Whether it is: where somebody has taken its uploads for gone, its files go, since
/// another run writes the rows.
async fn is_complete(
    notes: &NotePlace<'_>,
    objects: &dyn ObjectStore,
    pending: &Pending,
    found: &Found,
) -> Result<bool> {
    let (rows, files, run) = (pending.rows, pending.uploads.len(), Some(pending.run.clone()));
    let complete = Note::Complete { rows, files, run };
    let mut instead_of = found.clone();
    for _ in 0..TRIES {
        if notes.put(&complete, Some(&instead_of)).await? {
            return Ok(true);
        }
        match notes.read().await? {
            // Somebody has removed the note, and the files are there.
            None => return Ok(true),
            Some(now) if now.note.run() == Some(&pending.run) => match now.note {
                // Somebody else has done the same.
                Note::Complete { .. } => return Ok(true),
                // It is as it was: the store was busy.
                Note::Pending { .. } => {
                    instead_of = now;
                    sleep(FIRST_PAUSE).await;
                    continue;
                }
                Note::Abandoned { .. } => {}
            },
            Some(_) => {}
        }
        for file in &pending.uploads {
            remove(objects, &file.place).await?;
        }
        return Ok(false);
    }
    exec_err!("'{}' cannot be written, and its next run goes on with it", notes.path)
}

async fn completed(store: &dyn MultipartStore, file: &UploadedFile) -> Result<()> {
    let done = file.complete(store).await.map_err(DataFusionError::from);
    done.while_doing(|| format!("completing '{}'", file.place))
}

/// Completes an upload, unless somebody has done that. Whether the file is there then, as far as is seen by so many
/// looks.
async fn is_there(
    objects: &dyn ObjectStore,
    store: &dyn MultipartStore,
    file: &UploadedFile,
    looks: usize,
) -> Result<bool> {
    let Err(e) = file.complete(store).await else { return Ok(true) };
    // Azure's stores say so of blocks that they have removed.
    let is_gone = matches!(e, Error::NotFound { .. }) || e.to_string().contains("InvalidBlockList");
    let looks = if is_gone { looks } else { TRIES };
    for tries in 0..looks {
        match objects.head(&file.place).await {
            // No other run has files of its name.
            Ok(there) if there.size == file.bytes => return Ok(true),
            // Somebody else may be about to complete it.
            Ok(_) | Err(Error::NotFound { .. }) if tries + 1 < looks => sleep(FIRST_PAUSE * (1 << tries)).await,
            _ => break,
        }
    }
    match is_gone {
        true => Ok(false),
        false => Err(DataFusionError::from(e)).while_doing(|| format!("completing '{}'", file.place)),
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

#[cfg(test)]
mod tests {
    use object_store::PutPayload;
    use object_store::memory::InMemory;

    use super::*;
    use crate::sinks::write_id::WriteId;

    /// A store with an upload to `t/part`, and a note that it is about to be completed.
    async fn noted() -> InMemory {
        let store = InMemory::new();
        let place = Path::from("t/part");
        let upload = store.create_multipart(&place).await.unwrap();
        let part = store.put_part(&place, &upload, 0, PutPayload::from("rows")).await.unwrap().content_id;
        let file = format!(r#"{{"place":"t/part","upload":"{upload}","parts":["{part}"],"bytes":4}}"#);
        let uploads = vec![serde_json::from_str(&file).unwrap()];
        let note = Note::Pending { pending: Pending { run: "a".to_owned(), rows: 7, uploads, old: Vec::new() } };
        assert!(place_of(&store).put(&note, None).await.unwrap());
        store
    }

    fn place_of(store: &InMemory) -> NotePlace<'_> {
        NotePlace::of(&WriteId::new("w").unwrap(), store, &Path::from("t"))
    }

    async fn finished(store: &InMemory, found: &Found) -> Result<bool> {
        finish(&place_of(store), store, store, found, async || Ok(Vec::new())).await
    }

    async fn is_stored(store: &InMemory, path: &str) -> bool {
        store.head(&Path::from(path)).await.is_ok()
    }

    #[tokio::test]
    async fn a_run_whose_note_was_replaced_removes_its_files() {
        for replaced in ["abandoned", "complete"] {
            let store = noted().await;
            let found = place_of(&store).read().await.unwrap().unwrap();
            let other = match replaced {
                "abandoned" => Note::Abandoned { abandoned: "a".to_owned() },
                _ => Note::Complete { rows: 7, files: 1, run: Some("b".to_owned()) },
            };
            assert!(place_of(&store).put(&other, Some(&found)).await.unwrap());
            assert!(!place_of(&store).put(&other, Some(&found)).await.unwrap(), "only in the place of what was found");
            assert!(!finished(&store, &found).await.unwrap(), "{replaced}");
            assert!(!is_stored(&store, "t/part").await, "{replaced}");
            assert_eq!(place_of(&store).read().await.unwrap().unwrap().note, other);
        }
    }

    #[tokio::test]
    async fn files_stay_where_somebody_has_done_the_same_or_removed_the_note() {
        let store = noted().await;
        let found = place_of(&store).read().await.unwrap().unwrap();
        assert!(finished(&store, &found).await.unwrap());
        // Its upload has ended, and its note is another one.
        assert!(finished(&store, &found).await.unwrap());
        assert!(is_stored(&store, "t/part").await);
        assert_eq!(place_of(&store).read().await.unwrap().unwrap().note.rows(), Some(7));
        let store = noted().await;
        let found = place_of(&store).read().await.unwrap().unwrap();
        store.delete(&Path::from("t/_blockyard/w.json")).await.unwrap();
        assert!(finished(&store, &found).await.unwrap());
        assert!(is_stored(&store, "t/part").await);
    }

    /// Binaries that know of complete writes only are not to take a pending one for such.
    #[test]
    fn a_note_has_rows_only_when_they_are_there() {
        let pending = Pending { run: "a".to_owned(), rows: 7, uploads: Vec::new(), old: Vec::new() };
        for note in [Note::Pending { pending }, Note::Abandoned { abandoned: "a".to_owned() }] {
            let json: serde_json::Value = serde_json::to_value(&note).unwrap();
            assert!(json.get("rows").is_none() && json.get("files").is_none(), "{json}");
            assert_eq!(serde_json::from_value::<Note>(json).unwrap(), note);
        }
        let old: Note = serde_json::from_str(r#"{"rows":5,"files":2}"#).unwrap();
        assert_eq!(old.rows(), Some(5));
    }
}
