//! Formats by the names of files, and by the names of functions.

use std::sync::Arc;

use crate::call::AnyTableFunction;
use crate::sources::formats::{ReadFormat, formats};

/// The table functions that read files.
pub(crate) fn read_functions() -> Vec<Arc<dyn AnyTableFunction>> {
    formats().map(|format| format.function).to_vec()
}

/// What a path names, by how it or the files in the directory end, or in `key=value` directories below it.
pub(crate) fn format_of_path(path: &str) -> Option<Arc<dyn ReadFormat>> {
    let of_name = |name: &str| {
        let name = name.to_lowercase();
        let ends = |e: &str| name.split('.').skip(1).any(|part| part == e);
        formats().into_iter().map(|format| format.as_it_is).find(|format| format.extensions().iter().any(|e| ends(e)))
    };
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    of_name(last).or_else(|| {
        let mut names: Vec<String> = std::fs::read_dir(path)
            .ok()?
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        let below = |name: &String| name.contains('=').then(|| format_of_path(&format!("{path}/{name}/"))).flatten();
        names.iter().find_map(|name| of_name(name)).or_else(|| names.iter().find_map(below))
    })
}
