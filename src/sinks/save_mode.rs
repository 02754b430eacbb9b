//! What happens to output that is already there.

use std::fmt;
use std::str::FromStr;

use datafusion::common::{DataFusionError, Result};

use crate::error::unknown_name;

/// What a write does when its directory already has files, or its file already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveMode {
    /// Adds files, numbered on from those that are there. The default for directories.
    Append,
    /// Removes what writes of the same format have made there, once the new files are complete: other files stay. Fails
    /// where there are others of this format, which would be read together with the new ones. The default for single
    /// files.
    Overwrite,
    /// Removes all that is there once the new files are complete, whoever made it, but for hidden files.
    OverwriteAll,
    /// Leaves what is there and writes nothing.
    Ignore,
    /// Fails before any work.
    Error,
}

impl FromStr for SaveMode {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "append" => Ok(Self::Append),
            "overwrite" => Ok(Self::Overwrite),
            "overwrite_all" => Ok(Self::OverwriteAll),
            "ignore" => Ok(Self::Ignore),
            "error" | "create" => Ok(Self::Error),
            _ => Err(unknown_name("value", text, "mode", &["append", "overwrite", "overwrite_all", "ignore", "error"])),
        }
    }
}

impl fmt::Display for SaveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Append => "append",
            Self::Overwrite => "overwrite",
            Self::OverwriteAll => "overwrite_all",
            Self::Ignore => "ignore",
            Self::Error => "error",
        })
    }
}
