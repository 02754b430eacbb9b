//! Operators beside DataFusion's own, which see to it that those keep to the memory they have.

mod compact;
mod fold;
mod middle_rows;
mod stored_partition;
mod window_partitions;

pub(crate) use compact::CompactExec;
pub(crate) use fold::FoldExec;
pub(crate) use middle_rows::MiddleRowsExec;
pub(crate) use window_partitions::WindowPartitionsExec;
