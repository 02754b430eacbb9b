//! How large the windows of a pipeline are.

use std::fmt;

use datafusion::common::{Result, plan_err};

use crate::config::ByteSize;

/// How large the windows of a pipeline are. The last one of a pass may be smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WindowSize {
    /// So many blocks: tasks of the source.
    Blocks(usize),
    /// At most so many bytes, and at least one block: by what the metadata of the source says, where it says that, and
    /// else by the rows that come.
    Bytes(usize),
    /// Exactly so many rows.
    Rows(usize),
}

/// Ten blocks.
impl Default for WindowSize {
    fn default() -> Self {
        Self::Blocks(10)
    }
}

impl WindowSize {
    /// Fails where windows would have nothing in them.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Blocks(0) => plan_err!("windows must have at least 1 block, got 0"),
            Self::Bytes(0) => plan_err!("windows must have at least 1 byte, got 0"),
            Self::Rows(0) => plan_err!("windows must have at least 1 row, got 0"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for WindowSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(blocks) => write!(f, "blocks={blocks}"),
            Self::Bytes(bytes) => write!(f, "bytes={}", ByteSize(*bytes)),
            Self::Rows(rows) => write!(f, "rows={rows}"),
        }
    }
}
