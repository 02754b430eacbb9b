//! What stands beside DataFusion's own operators and expressions, or in their place: so that they keep to the memory
//! they have, or take less time.

mod coded_texts;
mod compact;
mod cumulative_windows;
mod flush;
mod fold;
mod group_top_k;
mod middle_rows;
mod narrow_decimals;
mod patient;
mod roll_up;
mod sort_in_memory;
mod stored_rows;
mod window_partitions;

pub(crate) use coded_texts::{CodeExec, CodedTexts, DecodeExec};
pub(crate) use compact::CompactExec;
pub(crate) use cumulative_windows::{CumulativeWindowsExec, Ranking, are_cumulative, has_filter, ranking_of};
pub(crate) use flush::FlushExec;
pub(crate) use fold::FoldExec;
pub(crate) use group_top_k::{GroupTopKExec, TopOfGroups};
pub(crate) use middle_rows::MiddleRowsExec;
pub(crate) use narrow_decimals::{is_narrow_decimals, narrow_decimals};
pub(crate) use patient::{patient, patiently};
pub(crate) use roll_up::RollUpExec;
pub(crate) use sort_in_memory::SortInMemoryExec;
pub(crate) use window_partitions::WindowPartitionsExec;
