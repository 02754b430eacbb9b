//! The inputs of a union one after the other, where memory is too short for all of them at once.
//!
//! ```text
//! UnionExec     input 0 ──────          all are polled at once, and each holds what it works on
//!               input 1 ──────
//!
//! TurnsExec     input 0 ── input 1 ──   an input starts when the one before has given back what it held
//! ```
//!
//! Tasks have the ids that they have in the union, so that rows come in the same order, and belong to the same blocks.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions};
use futures::{StreamExt, TryStreamExt, stream};

use super::StageMetrics;
use super::claims;
use super::tasks::{Task, TaskPlan, TaskStream, all_tasks, execute_tasks, is_ordered, properties};

/// The rows of a union in one stream.
#[derive(Debug)]
pub(crate) struct TurnsExec {
    /// Whose inputs these are.
    union: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl TurnsExec {
    /// The rows of `union`, a [`UnionExec`].
    pub(crate) fn new(union: Arc<dyn ExecutionPlan>) -> Self {
        let properties = properties(claims::of_rows(union.as_ref()), 1, EmissionType::Incremental);
        Self { union, properties, stage: StageMetrics::default() }
    }
}

impl DisplayAs for TurnsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "TurnsExec"),
        }
    }
}

impl ExecutionPlan for TurnsExec {
    fn name(&self) -> &str {
        "TurnsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.union.children()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(UnionExec::try_new(children)?)))
    }

    without_expressions!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.stage.metrics())
    }

    fn child_stats_requests(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        self.union.child_stats_requests(None)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.union.statistics_from_inputs(inputs, &StatisticsArgs::new())
    }
}

impl TaskPlan for TurnsExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let inputs: Vec<_> = self.children().into_iter().cloned().enumerate().collect();
        let tasks = stream::iter(inputs).map(move |(index, input)| {
            // Nothing of an input is executed before its turn.
            let tasks = all_tasks(&input, Arc::clone(&context), None)?;
            let of_input = move |task: Task| Task { id: task.id.within(index), ..task };
            Ok::<_, DataFusionError>(tasks.map_ok(of_input))
        });
        Ok(tasks.try_flatten().boxed())
    }

    fn stage_name(&self) -> String {
        "Turns".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn is_ordered(&self) -> bool {
        self.children().into_iter().all(|child| is_ordered(child.as_ref()))
    }
}
