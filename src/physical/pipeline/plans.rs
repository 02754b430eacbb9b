//! What a pipeline asks of whoever plans its windows.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;

use crate::functions::WindowSize;
use crate::store::BlockHandle;

/// Plans the windows of a pipeline.
#[async_trait]
pub(crate) trait WindowPlans: Debug + Send + Sync {
    /// Looks at the source as it is now, for pass number `pass` over it.
    async fn begin(&self, pass: u64) -> Result<Arc<dyn Pass>>;
}

/// A pass over the source of a pipeline.
#[async_trait]
pub(crate) trait Pass: Debug + Send + Sync {
    /// What its windows are.
    fn source(&self) -> &PassSource;

    /// Whether the plan of a window holds what the window reads for as long as it is held itself.
    fn plans_hold_blocks(&self) -> bool;

    /// The plan of its window number `number`, in which it is window `window` of epoch `epoch`.
    async fn plan(&self, number: u64, label: (u32, u32), input: WindowInput) -> Result<Arc<dyn ExecutionPlan>>;
}

/// What the windows of a pass are.
#[derive(Debug, Clone)]
pub(crate) enum PassSource {
    /// There is one, of all rows.
    All,
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
    /// All rows of the source.
    All,
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
