//! The rules that every session has.

use super::{RuleRegistry, logical, physical};

impl Default for RuleRegistry {
    fn default() -> Self {
        let mut registry = Self::empty();
        logical::register(&mut registry);
        physical::register(&mut registry);
        registry
    }
}
