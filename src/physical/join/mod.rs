//! Joins of which no side has to fit in memory.

mod bucket_join;
mod merge;

pub(crate) use bucket_join::BucketJoinExec;
