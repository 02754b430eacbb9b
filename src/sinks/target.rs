//! [`Target`]: where a write goes, and whether it may.

use datafusion::common::{Result, exec_err};
use datafusion::datasource::listing::ListingTableUrl;
use object_store::path::Path;

use super::endings::ends_as;
use super::file_names::FileNames;
use super::save_mode::SaveMode;
use super::write_id::WriteId;

/// Files that an error names.
const NAMED: usize = 3;

/// Where a write goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Directory or file.
    pub(crate) url: ListingTableUrl,
    /// Ending of file names, like `csv.gz`.
    pub(crate) extension: String,
    /// How names of files end that a read of this format takes for its own.
    pub(crate) read_extensions: &'static [&'static str],
    /// Whether the URL names one file instead of a directory.
    pub(crate) single_file: bool,
    /// What happens to existing output.
    pub(crate) mode: SaveMode,
    /// The name of a write that happens once.
    pub(crate) write_id: Option<WriteId>,
    /// How its files are called.
    pub(crate) names: FileNames,
}

impl Target {
    /// Whether a file was left by an earlier run of the same write.
    pub(super) fn has_left(&self, path: &Path) -> bool {
        // That may have called them otherwise.
        let names = [&self.names, &FileNames::of_parts(true)];
        let name = path.filename().unwrap_or_default();
        self.write_id.as_ref().is_some_and(|write| names.iter().any(|names| names.is_of(name, write)))
    }

    /// Whether a file is one that a write of this format to this place has made: by its name, and in `key=value`
    /// directories.
    pub(super) fn has_made(&self, path: &Path) -> bool {
        let below: Vec<_> = path.prefix_match(self.url.prefix()).into_iter().flatten().collect();
        let Some((name, directories)) = below.split_last() else {
            return false;
        };
        let names = [&self.names, &FileNames::of_parts(false), &FileNames::of_parts(true)];
        names.iter().any(|names| names.has(name.as_ref(), self.format()))
            && directories.iter().all(|directory| directory.as_ref().contains('='))
    }

    /// Whether old files go.
    pub(super) fn replaces(&self) -> bool {
        [SaveMode::Overwrite, SaveMode::OverwriteAll].contains(&self.mode)
    }

    /// Whether a file goes when new ones are there, if the write replaces such or has left it.
    pub(super) fn is_old(&self, path: &Path) -> bool {
        let goes = |path: &Path| self.mode == SaveMode::OverwriteAll || self.has_made(path);
        self.replaces() && goes(path) || self.has_left(path)
    }

    /// The ending of the names of its files, without that of a compression.
    fn format(&self) -> &str {
        self.extension.split('.').next().unwrap_or_default()
    }

    /// Fails where the mode does not allow a write beside these files.
    pub(super) fn check_mode(&self, existing: &[Path]) -> Result<()> {
        match self.mode {
            _ if existing.is_empty() => Ok(()),
            SaveMode::Error => exec_err!(
                "output '{}' already exists ({} files) and the mode is error; use append, overwrite or ignore",
                self.url,
                existing.len()
            ),
            SaveMode::Append if self.single_file => {
                exec_err!("cannot append to the single file '{}'; use overwrite, or a directory", self.url)
            }
            SaveMode::Overwrite if !self.single_file => self.check_no_strangers(existing),
            SaveMode::Ignore | SaveMode::Append | SaveMode::Overwrite | SaveMode::OverwriteAll => Ok(()),
        }
    }

    /// Fails where there are files that a read of the directory would take for those of the write.
    pub(super) fn check_no_strangers(&self, existing: &[Path]) -> Result<()> {
        let is_read = |path: &&Path| {
            let name = path.filename().unwrap_or_default();
            self.read_extensions.iter().any(|known| ends_as(name, known))
        };
        let strangers: Vec<_> = existing.iter().filter(is_read).filter(|path| !self.has_made(path)).collect();
        if strangers.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = strangers.iter().take(NAMED).map(|path| path.as_ref()).collect();
        let more = if strangers.len() > NAMED { ", .." } else { "" };
        exec_err!(
            "'{}' has {} files that no write of this format has made ({}{more}), and that would be read together with the new ones; \
             write to a directory of its own, or say that they go, too, with the mode overwrite_all",
            self.url,
            strangers.len(),
            names.join(", ")
        )
    }
}
