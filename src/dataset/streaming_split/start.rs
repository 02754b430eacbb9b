//! What gives the iterators of a split.

use datafusion::common::{Result, plan_err};

use super::iterator::SplitIterator;
use super::options::{SplitBarrier, SplitOptions};
use super::split::Split;
use crate::dataset::iterate::Apart;
use crate::dataset::{Dataset, DatasetPipeline};

impl Dataset {
    /// `n` iterators over the dataset, for as many consumers at once, in as many epochs as they ask for. Rows are dealt
    /// by turns: what is in batch `k` of iterator `i` depends on `k`, `i`, `n` and the dataset alone.
    ///
    /// # Errors
    ///
    /// Where options do not go together. What fails later is an error of all iterators.
    pub fn streaming_split(&self, n: usize, options: SplitOptions) -> Result<Vec<SplitIterator>> {
        if options.barrier == SplitBarrier::Window {
            return plan_err!("a barrier for each window needs a pipeline: window(..) of the dataset");
        }
        Split::start(self, Apart::Nothing, n, options).map(|split| SplitIterator::all(&split))
    }
}

impl DatasetPipeline {
    /// As [`Dataset::streaming_split`]. What an epoch is there is one of the pipeline here, or one of its windows with
    /// [`SplitBarrier::Window`], and behind the last one there are no more.
    ///
    /// # Errors
    ///
    /// As [`Dataset::streaming_split`].
    pub fn streaming_split(&self, n: usize, options: SplitOptions) -> Result<Vec<SplitIterator>> {
        let apart = match options.barrier {
            SplitBarrier::Window => Apart::Windows,
            SplitBarrier::Epoch | SplitBarrier::None => Apart::Epochs,
        };
        Split::start(&self.clone().into_dataset(), apart, n, options).map(|split| SplitIterator::all(&split))
    }

    /// Ray's `split` of a pipeline: `n` iterators, none of which enters a window before all have finished the one
    /// before. With `equal`, everyone gets equally many rows of each window.
    ///
    /// # Errors
    ///
    /// For no iterators.
    pub fn split(&self, n: usize, equal: bool) -> Result<Vec<SplitIterator>> {
        self.streaming_split(n, SplitOptions { equal, barrier: SplitBarrier::Window, ..SplitOptions::default() })
    }
}
