//! The commit of a write to an object store: uploads are completed, and then goes what they replace.
//!
//! A write with a name is decided by its note (`write_note.rs`): the first run that puts one has written it. Everybody
//! who finds a note does what it says, as often as it takes, since an upload is completed once. So a run that is killed
//! or stopped meanwhile leaves nothing undone, and of two at once neither takes anything from the other.

use std::collections::HashSet;

use datafusion::common::{Result, exec_err};
use object_store::path::Path;

use super::completing::{complete_all, finish, remove, remove_old};
use super::staged::{Staged, WrittenFile};
use super::staging::Staging;
use super::upload_area::UploadArea;
use super::uploads::UploadedFile;
use super::write_id::WriteId;
use super::write_note::{Note, NotePlace, Pending};

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

    /// The same of a write with a name, whatever else runs under it.
    pub(super) async fn complete_once(
        &self,
        write: &WriteId,
        area: &UploadArea,
        files: Vec<Staged>,
    ) -> Result<Vec<WrittenFile>> {
        let (uploads, store) = (area.take(&files).await?, area.store());
        let notes = NotePlace::of(write, self.store.as_ref(), &self.directory);
        let run = uuid::Uuid::new_v4().simple().to_string();
        loop {
            let found = notes.read().await?;
            if let Some(found) = &found {
                let is_ours = found.note.run.as_ref() == Some(&run);
                if finish(&notes, self.store.as_ref(), store, found).await? {
                    if is_ours {
                        return Ok(self.written_of(&uploads, &files));
                    }
                    // Another run of it was faster.
                    for file in &uploads {
                        file.give_up(store).await;
                    }
                    return Ok(Vec::new());
                }
                if is_ours {
                    return exec_err!("uploads of write '{}' were given up by somebody else", write.name());
                }
            }
            let old = self.old_files().await?;
            let old = replaced(&old, &uploads).map(Path::to_string).collect();
            let pending = Pending { uploads: uploads.clone(), old };
            let rows = files.iter().map(|file| file.rows).sum();
            let note = Note { rows, files: files.len(), run: Some(run.clone()), pending: Some(pending) };
            // What has come to be there is done next, whoever has put it.
            notes.put(&note, found.as_ref()).await?;
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
