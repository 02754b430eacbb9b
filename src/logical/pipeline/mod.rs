//! Pipelines: plans that run for one window of their source after the other.
//!
//! ```text
//! Pipeline: epochs=2               runs what is below for each window, twice over
//!   Sort: id DESC                  each window
//!     MapBatches: f                each window
//!       Window: blocks=3           stands for the rows of a window of what is below
//!         TableScan: t
//! ```

mod calls;
mod each_window;
mod endless;
mod node;
mod window;

pub(crate) use calls::pipeline_of;
pub(crate) use endless::is_endless;
pub use node::{Epochs, PipelineNode};
pub(crate) use window::LABELS;
pub use window::WindowNode;

use std::sync::Arc;

use crate::call::AnyTableFunction;

/// The table functions of pipelines.
pub(crate) fn pipeline_functions() -> Vec<Arc<dyn AnyTableFunction>> {
    vec![
        Arc::new(calls::Windows),
        Arc::new(calls::Repeat),
        Arc::new(calls::Rewindow),
        Arc::new(calls::ForeachWindow),
        Arc::new(each_window::RandomShuffleEachWindow),
        Arc::new(each_window::RandomizeBlockOrderEachWindow),
        Arc::new(each_window::SortEachWindow),
        Arc::new(each_window::RepartitionEachWindow),
        Arc::new(calls::EachWindow),
        Arc::new(calls::ThisWindow),
        Arc::new(calls::WindowsOf),
        Arc::new(calls::ThisWindowOf),
    ]
}
