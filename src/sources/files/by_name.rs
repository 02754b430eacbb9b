//! Formats by the names of files, and by the names of functions.

use std::sync::Arc;

use crate::call::AnyTableFunction;
use crate::sinks::{ends_as, is_hidden};
use crate::sources::formats::{ReadFormat, formats};

/// The table functions that read files.
pub(crate) fn read_functions() -> Vec<Arc<dyn AnyTableFunction>> {
    formats().map(|format| format.function).to_vec()
}

/// What a path names, by how it or the files in the directory end, or those of the directories below it.
pub(crate) fn format_of_path(path: &str) -> Option<Arc<dyn ReadFormat>> {
    let of_ending = |ends: &dyn Fn(&str) -> bool| {
        formats().into_iter().map(|format| format.as_it_is).find(|format| format.extensions().iter().any(|e| ends(e)))
    };
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    // What somebody names is read, whatever stands behind its ending.
    of_ending(&|e| last.split('.').skip(1).any(|part| part.eq_ignore_ascii_case(e))).or_else(|| {
        let mut entries: Vec<(String, bool)> = std::fs::read_dir(path)
            .ok()?
            .flatten()
            .map(|entry| {
                (entry.file_name().to_string_lossy().into_owned(), entry.file_type().is_ok_and(|t| t.is_dir()))
            })
            .filter(|(name, _)| !is_hidden(name))
            .collect();
        entries.sort();
        // A directory says nothing by its name, be there dots in it.
        let (directories, files): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(_, is_directory)| *is_directory);
        let below = |(name, _): (String, bool)| format_of_path(&format!("{}/{name}/", path.trim_end_matches('/')));
        files
            .iter()
            .find_map(|(name, _)| of_ending(&|e| ends_as(name, e)))
            .or_else(|| directories.into_iter().find_map(below))
    })
}
