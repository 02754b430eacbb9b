//! Writes with a name, which happen once: a second run of one that was completed does nothing, and of one that was cut
//! short it takes the place of what that left.
//!
//! The files of such a write have its name in theirs, or a number that follows from it. When all of them are there, a
//! note in `_blockyard/`, which no read looks at, says so.

use std::fmt;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_err};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};

use crate::error::ErrorContext;

/// The directory of the notes.
const NOTES: &str = "_blockyard";
/// Letters that a name may have.
const MAX_LENGTH: usize = 128;

/// The name of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WriteId {
    name: String,
    digits: String,
}

/// What is noted of a write that is complete.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    rows: usize,
    files: usize,
}

impl WriteId {
    /// Digits of what stands for a write without a name.
    pub(super) const DRAWN_DIGITS: usize = 8;

    /// Stands for a write without a name: that of no other.
    pub(super) fn drawn() -> Self {
        let digits = uuid::Uuid::new_v4().simple().to_string()[..Self::DRAWN_DIGITS].to_owned();
        Self { name: digits.clone(), digits }
    }

    /// Whether a name may have this letter.
    pub(super) fn may_have(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
    }

    /// A name of letters, digits, dots, dashes and underscores.
    pub(crate) fn new(name: &str) -> Result<Self> {
        if name.is_empty() || name.len() > MAX_LENGTH || !name.chars().all(Self::may_have) || name.starts_with('.') {
            return plan_err!(
                "write_id takes up to {MAX_LENGTH} letters, digits, dots, dashes and underscores, got '{name}'"
            );
        }
        // FNV-1a.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let digits = format!("{:016x}", name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        Ok(Self { name: name.to_owned(), digits })
    }

    /// What its users call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What follows from its name, and is short.
    pub(super) fn digits(&self) -> &str {
        &self.digits
    }

    /// The rows that it has written below a directory, if it is complete.
    pub(super) async fn rows(&self, store: &dyn ObjectStore, directory: &Path) -> Result<Option<usize>> {
        let place = self.note(directory);
        let bytes = match store.get(&place).await {
            Ok(found) => found.bytes().await?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(DataFusionError::from(e)).while_doing(|| format!("reading '{place}'")),
        };
        let note: Note = serde_json::from_slice(&bytes)
            .map_err(|e| exec_datafusion_err!("'{place}' is no note of a write that was completed: {e}"))?;
        Ok(Some(note.rows))
    }

    /// Notes that it is complete.
    pub(super) async fn is_complete(
        &self,
        store: &dyn ObjectStore,
        directory: &Path,
        rows: usize,
        files: usize,
    ) -> Result<()> {
        let note = serde_json::to_vec(&Note { rows, files }).map_err(|e| DataFusionError::External(Box::new(e)))?;
        let place = self.note(directory);
        let put = store.put(&place, PutPayload::from(note)).await.map_err(DataFusionError::from);
        put.while_doing(|| format!("noting that write '{}' is complete", self.name)).map(|_| ())
    }

    fn note(&self, directory: &Path) -> Path {
        directory.clone().join(NOTES).join(format!("{}.json", self.name))
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["", "a b", "a/b", "é", ".a", &"x".repeat(129)] {
            assert!(WriteId::new(name).unwrap_err().to_string().contains("write_id takes"), "{name}");
        }
        assert_ne!(WriteId::new("2026-11-25").unwrap().digits(), WriteId::new("2026-11-26").unwrap().digits());
        assert_ne!(WriteId::drawn(), WriteId::drawn());
    }
}
