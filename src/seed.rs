//! Seeds for those who do not care.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::block::mix;

/// A seed that is different each time. It is drawn when a plan is built, so that the plan itself is repeatable.
pub(crate) fn fresh_seed() -> u64 {
    mix(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64)
}
