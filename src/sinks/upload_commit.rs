//! The commit of a write to an object store: uploads are completed, and then goes what they replace.
//!
//! A write with a name is decided by its note (`write_note.rs`): the first run that puts one has written it. Everybody
//! who finds a note does what it says, as often as it takes, since an upload is completed once. So a run that is killed
//! or stopped meanwhile leaves nothing undone, and of two at once neither takes anything from the other.

use std::collections::HashSet;
use std::time::Duration;

use datafusion::common::{Result, exec_err};
use object_store::path::Path;
use tokio::time::sleep;

use super::completing::{complete_all, finish, remove, remove_old};
use super::staged::{Staged, WrittenFile};
use super::staging::Staging;
use super::upload_area::UploadArea;
use super::uploads::UploadedFile;
use super::write_id::WriteId;
use super::write_note::{Note, NotePlace, Pending};

/// How often a run tries to note what it is about to do, and the pause between.
const NOTE_TRIES: u32 = 20;
const NOTE_PAUSE: Duration = Duration::from_millis(20);

impl Staging {
    /// Completes the uploads of these files; where that fails, what was completed goes again. Old ones go last.
    pub(super) async fn complete(
        &self,
        area: &UploadArea,
        old: &[Path],
        files: Vec<Staged>,
    ) -> Result<Vec<WrittenFile>> {
        let (uploads, store) = (area.take(&files).await?, area.store());
        if let Err(failed) = complete_all(store, &uploads).await {
            for file in &uploads {
                file.give_up(store).await;
                // Of a file whose answer was lost, it is not known. The first error is the one to tell.
                if !self.target.single_file {
                    let _removed = remove(self.store.as_ref(), &file.place).await;
                }
            }
            return Err(failed);
        }
        for path in replaced(old, &uploads) {
            remove_old(self.store.as_ref(), path).await?;
        }
        Ok(self.written_of(&uploads, &files))
    }

    /// The same of a write with a name, which goes into a directory, whatever else runs under it.
    pub(super) async fn complete_once(
        &self,
        write: &WriteId,
        area: &UploadArea,
        files: Vec<Staged>,
    ) -> Result<Vec<WrittenFile>> {
        let uploads = area.take(&files).await?;
        let mut is_noted = false;
        let done = self.noted_and_done(write, area, &files, &uploads, &mut is_noted).await;
        let are_noted = matches!(done, Ok(true)) || done.is_err() && is_noted;
        if !are_noted {
            // Another run of it was faster, or nobody knows of them.
            for file in &uploads {
                file.give_up(area.store()).await;
            }
        }
        Ok(if done? { self.written_of(&uploads, &files) } else { Vec::new() })
    }

    /// Whether the write is complete with these uploads, and not with those of another run. `is_noted` when they may
    /// have been noted.
    async fn noted_and_done(
        &self,
        write: &WriteId,
        area: &UploadArea,
        files: &[Staged],
        uploads: &[UploadedFile],
        is_noted: &mut bool,
    ) -> Result<bool> {
        let (objects, store) = (self.store.as_ref(), area.store());
        let notes = NotePlace::of(write, objects, &self.directory);
        let run = uuid::Uuid::new_v4().simple().to_string();
        for tries in 0..NOTE_TRIES {
            let found = notes.read().await?;
            if let Some(found) = &found {
                let is_ours = found.note.run() == Some(&run);
                if finish(&notes, objects, store, found, async || self.replaced_files().await).await? {
                    return Ok(is_ours);
                }
                if matches!(found.note, Note::Pending { .. }) {
                    // It is looked at again what has become of it.
                    continue;
                }
                if is_ours {
                    return exec_err!("uploads of write '{}' were given up by somebody else", write.name());
                }
            }
            sleep(NOTE_PAUSE * tries).await;
            let old = self.old_files().await?;
            let old = replaced(&old, uploads).map(Path::to_string).collect();
            let rows = files.iter().map(|file| file.rows).sum();
            let pending = Pending { run: run.clone(), rows, uploads: uploads.to_vec(), old };
            *is_noted = true;
            // What has come to be there is done next, whoever has put it.
            notes.put(&Note::Pending { pending }, found.as_ref()).await?;
        }
        exec_err!("'{}' cannot be written: others were faster {NOTE_TRIES} times", notes.path)
    }

    /// What a write that replaces others finds.
    async fn replaced_files(&self) -> Result<Vec<Path>> {
        match self.target.replaces() {
            true => self.old_files().await,
            false => Ok(Vec::new()),
        }
    }

    fn written_of(&self, uploads: &[UploadedFile], files: &[Staged]) -> Vec<WrittenFile> {
        let written = uploads.iter().zip(files);
        written.map(|(upload, file)| self.written(&upload.place, file.rows, upload.bytes)).collect()
    }
}

/// Of the old files those in whose places no new one is.
fn replaced<'a>(old: &'a [Path], uploads: &[UploadedFile]) -> impl Iterator<Item = &'a Path> {
    let new: HashSet<Path> = uploads.iter().map(|file| file.place.clone()).collect();
    old.iter().filter(move |old| !new.contains(*old))
}
