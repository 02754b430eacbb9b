//! Operators that pass rows on as they are, and keep DataFusion's rules from what would be wrong.

mod claims;
mod filter;
mod order;

pub(crate) use claims::{Claims, HideClaimsExec};
pub(crate) use filter::{FilterBarrierExec, unambiguous};
pub(crate) use order::OrderBarrierExec;
