//! Writes with a name, which happen once: a second run of one that was completed does nothing, and of one that was cut
//! short it takes the place of what that left.
//!
//! The files of such a write have its name in theirs, or a number that follows from it. A note says what has become of
//! it (`write_note.rs`).

use std::fmt;

use datafusion::common::{Result, plan_err};
use serde::{Deserialize, Serialize};

/// Letters that a name may have.
const MAX_LENGTH: usize = 128;

/// The name of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WriteId {
    name: String,
    digits: String,
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
