//! Joins of which no side has to fit in memory.

mod bucket_join;
mod known_keys;
mod merge;
mod side;

pub(crate) use bucket_join::BucketJoinExec;
