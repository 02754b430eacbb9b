//! Operators beside DataFusion's own, which see to it that those keep to the memory they have.

mod compact;
mod cumulative_windows;
mod fold;
mod middle_rows;
mod stored_rows;
mod window_partitions;

pub(crate) use compact::CompactExec;
pub(crate) use cumulative_windows::{CumulativeWindowsExec, are_cumulative};
pub(crate) use fold::FoldExec;
pub(crate) use middle_rows::MiddleRowsExec;
pub(crate) use window_partitions::WindowPartitionsExec;
