//! What a pipeline asks of whoever plans its windows.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::ByteSize;
use crate::functions::WindowSize;
use crate::store::BlockHandle;
use futures::future::BoxFuture;

/// Plans the windows of a pipeline.
pub(crate) trait WindowPlans: Debug + Send + Sync {
    /// Looks at the source as it is now, for pass number `pass` over it.
    fn begin(&self, pass: u64) -> BoxFuture<'_, Result<Arc<dyn Pass>>>;
}

/// The plan of a window, when it is made.
pub(crate) type PlannedWindow<'a> = BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>>;

/// A pass over the source of a pipeline.
pub(crate) trait Pass: Debug + Send + Sync {
    /// What its windows are.
    fn source(&self) -> &PassSource;

    /// Whether the plan of a window holds what the window reads for as long as it is held itself.
    fn plans_hold_blocks(&self) -> bool;

    /// The plan of its window number `number`, in which it is window `window` of epoch `epoch`.
    fn plan(&self, number: u64, label: (u32, u32), input: WindowInput) -> PlannedWindow<'_>;
}

/// What the windows of a pass are.
#[derive(Debug, Clone)]
pub(crate) enum PassSource {
    /// There are so many, each of all rows of a source.
    Inputs(usize),
    /// Neighbouring tasks of a read.
    Tasks(Vec<WindowTasks>),
    /// They are cut out of the rows of a plan.
    Rows {
        /// The plan.
        plan: Arc<dyn ExecutionPlan>,
        /// How large they are.
        size: WindowSize,
        /// Whether none has rows of two epochs of the pipeline that `plan` is.
        keeps_epochs: bool,
    },
}

/// A window of the tasks of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowTasks {
    /// The numbers of the tasks.
    pub(crate) tasks: Range<usize>,
    /// Bytes of their rows, where the source knows.
    pub(crate) bytes: Option<usize>,
}

/// What a window reads.
#[derive(Debug, Clone)]
pub(crate) enum WindowInput {
    /// All rows of the source of this number.
    Source(usize),
    /// These tasks of it.
    Tasks(Range<usize>),
    /// These blocks, each in pieces.
    Blocks(Vec<Vec<BlockHandle>>),
}

/// Which passes are which epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassEpochs {
    /// There is one pass, with the epochs of the pipeline that is the source.
    OfSource,
    /// So many passes are an epoch, and so many epochs there are, or no end of them.
    Of {
        /// Passes in an epoch.
        passes: u64,
        /// Epochs.
        times: Option<u64>,
    },
}

impl PassEpochs {
    /// The epoch of a pass; `None` where the last one has ended.
    pub(super) fn epoch_of(self, pass: u64) -> Option<u64> {
        match self {
            Self::OfSource => (pass == 0).then_some(0),
            Self::Of { passes, times } => {
                Some(pass / passes.max(1)).filter(|epoch| times.is_none_or(|times| *epoch < times))
            }
        }
    }

    /// Whether there is no last one.
    pub(super) fn is_endless(self) -> bool {
        matches!(self, Self::Of { times: None, .. })
    }
}

/// A window should have this part of the memory limit at most: two are in flight, each with its input and output.
const SHARE: usize = 4;

/// How large windows are, as Ray says it when it makes a pipeline, and which of them are too large or too small.
pub(super) fn describe(windows: &[WindowTasks], limit: usize, threads: usize) -> Vec<String> {
    let spread = |of: &dyn Fn(&WindowTasks) -> usize, show: &dyn Fn(usize) -> String| {
        let values: Vec<usize> = windows.iter().map(of).collect();
        let (min, max) = (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
        let mean = values.iter().sum::<usize>() / values.len().max(1);
        (max, format!("{} min, {} max, {} mean", show(min), show(max), show(mean)))
    };
    let (blocks, about_blocks) = spread(&|window| window.tasks.len(), &|blocks| blocks.to_string());
    let mut lines =
        vec![format!("{} windows in each pass", windows.len()), format!("Blocks per window: {about_blocks}")];
    if windows.iter().all(|window| window.bytes.is_some()) {
        let (bytes, about) = spread(&|window| window.bytes.unwrap_or(0), &|bytes| ByteSize(bytes).to_string());
        lines.push(format!("Bytes per window: {about}"));
        if bytes > limit / SHARE {
            lines.push(format!(
                "Warning: windows of more than {} (a quarter of the memory limit) may spill; make them smaller",
                ByteSize(limit / SHARE)
            ));
        }
    }
    if blocks < threads {
        lines.push(format!(
            "Warning: windows of {blocks} blocks keep {blocks} of {threads} threads busy; make them larger, or blocks smaller"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_are_too_large_or_too_small_are_told() {
        let window = |first: usize, last: usize, bytes| WindowTasks { tasks: first..last, bytes: Some(bytes) };
        let windows = [window(0, 3, 3 << 20), window(3, 5, 1 << 20)];
        let good = describe(&windows, 64 << 20, 2);
        let blocks = "Blocks per window: 2 min, 3 max, 2 mean";
        assert_eq!(good, ["2 windows in each pass", blocks, "Bytes per window: 1MiB min, 3MiB max, 2MiB mean"]);
        let bad = describe(&windows, 8 << 20, 4);
        assert!(bad[3].contains("more than 2MiB") && bad[4].contains("3 of 4 threads"), "{bad:?}");
    }
}
