//! Memory: one budget for blocks, tasks and DataFusion's operators, who gets how much of it, and what happens when it
//! is short.

mod admission;
mod budget;
mod owner;
mod pool;
mod pressure;

pub(crate) use admission::{Admission, Admissions, Entry, Running};
pub use budget::Budget;
pub(crate) use budget::Use;
pub use owner::Owner;
pub(crate) use owner::Owners;
pub use pool::{Holder, SharedMemoryPool};
pub(crate) use pool::{LEAST_MERGE_FACTOR, LEAST_MERGE_PART, QueryNeeds, QueryPool};
pub use pressure::{Allocator, Keep};
