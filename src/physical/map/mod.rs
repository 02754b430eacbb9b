//! Ray's map family (`map_batches`, `map`, `flat_map`, `filter`, `random_sample`, and what SQL adds: filters and
//! projections) as one operator with a list of steps.

mod batcher;
mod conditions;
mod diverted;
mod exec;
mod filter;
mod function;
mod limit;
mod project;
mod push;
mod sample;

pub(crate) use exec::MapExec;
pub(crate) use filter::FilterStep;
pub(crate) use function::FunctionStep;
pub(crate) use limit::{LimitStep, limited};
pub(crate) use project::ProjectStep;
pub(crate) use sample::SampleStep;

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::CardinalityEffect;

use super::FilesOfTask;
use crate::block::TaskId;
use crate::physical::tasks::{FailureLog, StepRows};
use crate::store::Owner;

/// The task that a step works for.
#[derive(Debug, Clone)]
pub(crate) struct StepTask {
    /// Where the task stands in its dataset.
    pub(crate) id: TaskId,
    /// The context that it runs in.
    pub(crate) context: Arc<TaskContext>,
    /// Which failures the steps of its stage have tolerated.
    pub(crate) log: Arc<FailureLog>,
    /// Rows of the step, in all tasks of this execution.
    pub(crate) rows: Arc<StepRows>,
    /// On whose behalf it takes memory.
    pub(crate) owner: Arc<Owner>,
    /// The files that the task reads, where that is known.
    pub(crate) files: Option<FilesOfTask>,
}

/// One operator of a fused stage. A step transforms the batches of one task, without knowing of other tasks.
pub(crate) trait MapStep: Debug + Send + Sync {
    /// What the stage's name shows for it, like `MapBatches(f)`.
    fn name(&self) -> String;

    /// Columns after the step.
    fn schema(&self) -> &SchemaRef;

    /// Transforms the batches of a task.
    fn run(&self, batches: SendableRecordBatchStream, task: StepTask) -> Result<SendableRecordBatchStream>;

    /// Builds what the step keeps on the thread of an actor.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    /// What is true of its rows, in the order of those that it gets, where it stands for an operator of DataFusion.
    fn known(&self) -> Option<&EquivalenceProperties> {
        None
    }

    /// How many rows it gives for those that it gets.
    fn cardinality(&self) -> CardinalityEffect;

    /// Whether what it gives depends on where rows stand in their task, by chance.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether it gives the same rows for the same rows whenever it runs.
    fn is_deterministic(&self) -> bool {
        true
    }

    /// Whether each row that it gives follows from the row of the same number alone.
    fn keeps_row_numbers(&self) -> bool {
        false
    }

    /// Whether it only leaves out rows, each for what it holds, whatever its number.
    fn is_filter(&self) -> bool {
        false
    }

    /// Whether it gives at least `rows` rows in all for as many rows of input.
    fn keeps_first(&self, _rows: usize) -> bool {
        matches!(self.cardinality(), CardinalityEffect::Equal)
    }

    /// Whether rows for which it fails are kept with the file that they are from.
    fn diverts(&self) -> bool {
        false
    }

    /// All that decides what it makes of rows, as text; none where that is only known in this process.
    fn said(&self) -> Option<String> {
        None
    }

    /// Expressions inside the step.
    fn expressions(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        Vec::new()
    }
}
