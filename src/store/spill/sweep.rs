//! What dead processes left: their spill directories, and elsewhere the files of writes that they did not end.

use std::path::{Path, PathBuf};
use std::{fs, io};

use uuid::Uuid;

use crate::disk::{SET_ASIDE, remove_left, was_left};

/// How the directories of processes are called.
pub(super) const PREFIX: &str = "blockyard-";
/// How the files are called that say where a process has others.
const NOTE: &str = "staged-";

/// Says in a directory of this process where it has other files that are to go should it die. Dropping it says that
/// they are gone.
#[derive(Debug)]
pub(crate) struct Note(PathBuf);

impl Note {
    /// Notes the directory `staged` in `own`.
    pub(super) fn write(own: &Path, staged: &Path) -> io::Result<Self> {
        let path = own.join(format!("{NOTE}{}", Uuid::new_v4().simple()));
        fs::write(&path, staged.as_os_str().as_encoded_bytes())?;
        Ok(Self(path))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// Removes the directories of processes that have died. What cannot be removed stays.
pub(super) fn sweep(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match name.strip_prefix('.') {
            None if name.starts_with(PREFIX) && was_left(&path) => {
                sweep_noted(&path);
                let _gone = fs::remove_dir_all(&path);
            }
            // Of a directory that is being made; or of a write that is not complete, in which old files may be set
            // aside.
            Some(name) if name.starts_with(PREFIX) && !name.ends_with(SET_ASIDE) => {
                remove_left(&path);
            }
            _ => {}
        }
    }
}

/// Removes what a process that has died noted in its directory.
fn sweep_noted(directory: &Path) {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    for note in files.filter(|file| file.file_name().to_string_lossy().starts_with(NOTE)) {
        let Ok(staged) = fs::read_to_string(note.path()) else {
            continue;
        };
        let staged = Path::new(&staged);
        let name = staged.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.strip_prefix('.').is_some_and(|name| name.starts_with(PREFIX)) {
            // Where it was about to commit, the next write to the place goes on.
            remove_left(staged);
        }
    }
}
