//! Memory: one budget for blocks, tasks and DataFusion's operators, who gets how much of it, and what happens when it
//! is short.

mod admission;
mod budget;
mod owner;
mod pool;
mod pressure;

pub(crate) use admission::{Admission, Admissions, AdmittedQuery, Entry};
pub use budget::Budget;
pub(crate) use budget::MemoryUse;
pub use owner::Owner;
pub(crate) use owner::Owners;
pub(crate) use pool::{Governor, MIN_MERGE_FACTOR, MIN_MERGE_PART, QueryNeeds, QueryPool};
pub use pool::{Holder, SharedMemoryPool};
pub use pressure::{Allocator, CacheLevel};
