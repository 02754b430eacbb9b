//! How batches are handed out.

use datafusion::common::{Result, plan_err};

use crate::token::ResumeToken;

/// How batches are handed out.
#[derive(Debug, Clone, PartialEq)]
pub struct IterOptions {
    /// Rows of a batch; at least 1. `None`: blocks, of at most 16 MiB; [`iter_blocks`](crate::Dataset::iter_blocks)
    /// gives whole ones.
    pub batch_size: Option<usize>,
    /// Batches that are made ahead of the one that is asked for.
    pub prefetch_batches: usize,
    /// Leaves out the last batch when it is short. Needs a `batch_size`.
    pub drop_last: bool,
    /// Shuffles rows among their neighbours, as [`local_shuffle`](crate::Dataset::local_shuffle) on top of the dataset
    /// does: the rows by which they move in the mean. Needs a `batch_size`.
    pub local_shuffle_buffer_size: Option<usize>,
    /// What gives the order of that shuffle in each epoch. Drawn if not said, or that of the token.
    pub local_shuffle_seed: Option<u64>,
    /// Which epoch it is, for seeds that differ from one to the next. `None`: how often the dataset was run before.
    pub epoch: Option<u64>,
    /// Goes on behind the batch at which a token was taken.
    pub resume: Option<ResumeToken>,
}

impl Default for IterOptions {
    fn default() -> Self {
        Self {
            batch_size: Some(256),
            prefetch_batches: 1,
            drop_last: false,
            local_shuffle_buffer_size: None,
            local_shuffle_seed: None,
            epoch: None,
            resume: None,
        }
    }
}

impl IterOptions {
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self { batch_size: Some(0), .. } => plan_err!("batch_size must be at least 1, got 0"),
            Self { batch_size: None, drop_last: true, .. } => {
                plan_err!("drop_last needs a batch_size: without one, no batch is short")
            }
            Self { batch_size: None, local_shuffle_buffer_size: Some(_), .. } => {
                plan_err!("local_shuffle_buffer_size needs a batch_size")
            }
            Self { local_shuffle_buffer_size: Some(0), .. } => {
                plan_err!("local_shuffle_buffer_size must be at least 1, got 0")
            }
            Self { local_shuffle_buffer_size: None, local_shuffle_seed: Some(_), .. } => {
                plan_err!("local_shuffle_seed needs a local_shuffle_buffer_size")
            }
            Self { epoch: Some(epoch), resume: Some(token), .. } if token.epoch() != *epoch => {
                plan_err!("the token is of epoch {}, and epoch {epoch} is asked for", token.epoch())
            }
            _ => Ok(()),
        }
    }
}
