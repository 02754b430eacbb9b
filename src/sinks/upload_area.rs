//! [`UploadArea`]: where the files of a write to an object store go, whichever process uploads them.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use object_store::ObjectStore;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::file_names::FileNames;
use super::one_process::InOneProcess;
use super::path_text;
use super::staged::Staged;
use super::target::Target;
use super::uploads::{UploadedFile, Uploads};
use super::write_id::WriteId;
use crate::block::TaskId;

/// Runs of a write have lower numbers.
const MAX_RUN: u32 = 1_000_000_000;

/// An object store, and what takes uploads that another process than the one that began them may complete, if it has
/// such.
#[derive(Clone)]
pub(crate) struct WrittenStore {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) uploads: Option<Arc<dyn MultipartStore>>,
}

/// Where uploads go.
#[derive(Debug)]
pub(crate) struct UploadArea {
    places: UploadPlaces,
    uploads: Arc<Uploads>,
    /// Whether other processes can upload, and complete what was uploaded.
    is_shared: bool,
}

/// How the files of a write to an object store are called, and where they are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct UploadPlaces {
    /// The address of the store.
    store: String,
    /// The directory; or the only file, where all rows go to one.
    #[serde(with = "path_text")]
    target: Path,
    is_single_file: bool,
    names: FileNames,
    extension: String,
    /// What tells the write apart in the names of files.
    write: WriteId,
    /// The numbers of the next files in each directory, behind those that are there if the write appends.
    next_numbers: HashMap<String, usize>,
    /// The last number of each file, by which runs of one write take no file from each other.
    run: Option<u32>,
}

impl UploadPlaces {
    /// Those of a write.
    pub(super) fn of(target: &Target, write: &WriteId, next_numbers: &HashMap<Path, usize>) -> Self {
        let run = uuid::Uuid::new_v4().as_fields().0 % MAX_RUN;
        Self {
            store: target.url.object_store().as_str().to_owned(),
            target: target.url.prefix().clone(),
            is_single_file: target.single_file,
            names: target.names.clone(),
            extension: target.extension.clone(),
            write: write.clone(),
            next_numbers: next_numbers.iter().map(|(path, number)| (path.to_string(), *number)).collect(),
            run: target.write_id.is_some().then_some(run),
        }
    }

    /// The address of the store.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// The place of the block `id`, in a directory below that of the write.
    fn of_block(&self, id: &TaskId, directory: &Path) -> Path {
        if self.is_single_file {
            return self.target.clone();
        }
        let directory: Path = self.target.parts().chain(directory.parts()).collect();
        let mut number: Vec<usize> = id.parts().iter().map(|part| *part as usize).collect();
        if let Some(first) = number.first_mut() {
            *first += self.next_numbers.get(directory.as_ref()).copied().unwrap_or_default();
        }
        number.extend(self.run.map(|run| run as usize));
        directory.join(self.names.name(&number, &self.write, &self.extension))
    }

    /// Sees whether uploads can begin there, by one that nobody completes.
    pub(crate) async fn try_out(&self, store: &dyn MultipartStore, attempt: u64) -> Result<()> {
        let place = self.target.clone().join(format!("{attempt}-seen"));
        let upload = store.create_multipart(&place).await?;
        // Who may not give up uploads may complete them all the same.
        let _gone = store.abort_multipart(&place, &upload).await;
        Ok(())
    }
}

impl UploadArea {
    /// That of the process which commits the write.
    pub(super) fn new(store: WrittenStore, places: UploadPlaces) -> Self {
        let is_shared = store.uploads.is_some();
        let uploads = store.uploads.unwrap_or_else(|| Arc::new(InOneProcess::new(store.store)));
        Self { places, uploads: Arc::new(Uploads::new(uploads)), is_shared }
    }

    /// That of another process.
    pub(crate) fn elsewhere(store: Arc<dyn MultipartStore>, places: UploadPlaces) -> Self {
        Self { places, uploads: Arc::new(Uploads::new(store)), is_shared: true }
    }

    /// What other processes are to know of it, if they can upload.
    pub(crate) fn shared(&self) -> Option<&UploadPlaces> {
        self.is_shared.then_some(&self.places)
    }

    /// The uploads.
    pub(super) fn uploads(&self) -> &Arc<Uploads> {
        &self.uploads
    }

    pub(super) fn store(&self) -> &dyn MultipartStore {
        self.uploads.store().as_ref()
    }

    /// The place of the block `id`, in a directory below that of the write.
    pub(super) fn place_of(&self, id: &TaskId, directory: &Path) -> Path {
        self.places.of_block(id, directory)
    }

    /// Takes the uploads of these files, and gives up all others.
    pub(super) async fn take(&self, files: &[Staged]) -> Result<Vec<UploadedFile>> {
        let places: Vec<_> = files.iter().map(|file| self.place_of(&file.id, &file.directory)).collect();
        self.uploads.take(&places).await
    }

    /// Gives away the upload of a file, for the process that commits it.
    pub(crate) fn hand_over(&self, file: &Staged) -> Result<UploadedFile> {
        self.uploads.hand_over(&self.place_of(&file.id, &file.directory))
    }

    /// Takes over what another process has uploaded as this file.
    pub(crate) fn take_over(&self, file: &Staged, upload: UploadedFile) -> Result<()> {
        let place = self.place_of(&file.id, &file.directory);
        if upload.place != place {
            return internal_err!("'{}' was uploaded in the place of '{place}'", upload.place);
        }
        self.uploads.take_over(upload);
        Ok(())
    }
}
