//! What plans and reports show of the files of a read.

use std::fmt;
use std::sync::Arc;

/// How many files a read has, and what it leaves out of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileCounts {
    /// Those that it reads, and those that are there: conditions on paths leave out some.
    pub(crate) kept: usize,
    pub(crate) all: usize,
    /// Directories that were not listed, since conditions rule out what is in them.
    pub(crate) skipped: usize,
    /// Those whose footers were read before, where these are not all: what is known of the others is an estimate.
    pub(crate) opened: Option<usize>,
    /// Row groups of these that it reads, and all: conditions leave out those of whose rows none can fulfil them.
    pub(crate) row_groups: (usize, usize),
    /// Columns of these that the read does not have.
    pub(crate) left_out: Arc<[String]>,
}

impl fmt::Display for FileCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kept < self.all {
            write!(f, ", files={}/{}", self.kept, self.all)?;
        }
        if self.skipped > 0 {
            write!(f, ", skipped directories={}", self.skipped)?;
        }
        let (kept, all) = self.row_groups;
        if kept < all {
            write!(f, ", row groups={kept}/{all}")?;
        }
        match self.opened {
            Some(opened) => write!(f, ", estimated by {opened} of {} files", self.kept),
            None => Ok(()),
        }
    }
}

impl FileCounts {
    /// What there is to say of the columns of a read called so.
    pub(super) fn remark(&self, name: &str) -> Option<String> {
        let more = match self.opened {
            Some(opened) => format!(", as far as is known by {opened} of {} files", self.kept),
            None => String::new(),
        };
        (!self.left_out.is_empty()).then(|| {
            let columns = self.left_out.join(", ");
            format!(
                "{name}: the first file does not have all columns, and those of others are left out: {columns}{more}; \
                     schema => 'union' reads them"
            )
        })
    }
}
