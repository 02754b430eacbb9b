//! Rows of a plan from a resume token on.

mod exec;

pub(crate) use exec::ResumeExec;
