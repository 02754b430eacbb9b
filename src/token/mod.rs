//! Resume tokens: positions in the rows of a plan as values, which go from one process to another.

mod fingerprint;
mod place;
mod resume_token;

pub(crate) use fingerprint::{plan_fingerprint, text_fingerprint};
pub(crate) use place::Place;
pub use resume_token::ResumeToken;
pub(crate) use resume_token::{Print, VERSION};
