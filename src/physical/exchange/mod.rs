//! The one way in which rows change tasks.
//!
//! ```text
//!  map side                         store                       reduce side
//!  task 0 ─ fused steps ─┐   one list of blocks           ┌─ bucket 0 ─ task 0
//!  task 1 ─ fused steps ─┼── (pieces) per map task ───────┼─ bucket 1 ─ task 1
//!  task 2 ─ fused steps ─┘   spilled when over the limit  └─ bucket 2 ─ task 2
//! ```
//!
//! The map side ends before the first bucket is read, unless rows stay in order and it is known where buckets end.
//! Buckets are pulled by the partitions from one queue, like read tasks; what they read is freed as they go.

mod buckets;
mod collect;
mod cuts;
mod cutter;
mod distributed;
mod exec;
mod ordered;
mod router;
mod runs;
mod schemes;
mod seen_keys;
mod slices;
mod sort_keys;
mod sort_parts;
mod sorted;
mod sorted_unit;

pub(crate) use collect::{StoredBlock, collect_blocks};
pub(super) use cuts::{Cut, cuts, equal_parts, exact_parts};
pub(crate) use cutter::BlockSize;
pub(crate) use distributed::{Distributed, Extent, FetchRows, Fetching, KeptBy, RowRange, TaskRows, TaskSizes};
pub(crate) use exec::ExchangeExec;
pub(super) use router::{KeyEncoding, among, code_of_null, with_code};
pub(super) use runs::Runs;
pub(super) use schemes::random_place;
pub(crate) use schemes::{
    BlockOrderScheme, HashScheme, RandomScheme, RangeScheme, Scheme, SizeScheme, SliceScheme, SpreadScheme,
};
pub(super) use seen_keys::{SeenKeys, Wanted};
pub(crate) use sort_keys::{Order, can_sort};
pub(crate) use sort_parts::{Part, dealer};
pub(crate) use sorted_unit::SortedUnit;
