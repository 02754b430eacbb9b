//! Pipelines: plans that run for one window of their source after the other.
//!
//! ```text
//! Pipeline: epochs=2               runs what is below for each window, twice over
//!   Sort: id DESC                  each window
//!     MapBatches: f                each window
//!       Window: blocks=3           stands for the rows of a window of what is below
//!         TableScan: t
//! ```

mod endless;
mod node;
mod window;

pub(crate) use endless::is_endless;
pub use node::{Epochs, PipelineNode};
pub(crate) use window::LABELS;
pub use window::WindowNode;
