//! Ray's `Read`: n read tasks behind `target_partitions` streams that pull them from one queue.
//!
//! The input is a scan with one partition per read task, pinned so that DataFusion neither re-splits nor steals.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, ReplaceChildrenOptions,
};
use futures::{StreamExt, stream};

use super::StageMetrics;
use super::tasks::{Task, TaskPlan, TaskStream, execute_tasks, properties};
use crate::block::TaskId;

/// Reads the partitions of its input as tasks.
#[derive(Debug)]
pub(crate) struct ReadExec {
    name: String,
    input: Arc<dyn ExecutionPlan>,
    next_task: Arc<AtomicUsize>,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl ReadExec {
    /// Reads `input`, one task per partition, with `partitions` streams. `name` is what plans show, like `ReadParquet`.
    pub(crate) fn new(name: impl Into<String>, input: Arc<dyn ExecutionPlan>, partitions: usize) -> Self {
        let properties = properties(input.schema(), partitions, EmissionType::Incremental);
        Self { name: name.into(), input, next_task: Arc::default(), properties, stage: StageMetrics::default() }
    }

    /// Number of read tasks.
    pub(crate) fn num_tasks(&self) -> usize {
        self.input.output_partitioning().partition_count()
    }
}

impl DisplayAs for ReadExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "{}\ntasks={}", self.name, self.num_tasks()),
            _ => write!(f, "ReadExec: {}, tasks={}", self.name, self.num_tasks()),
        }
    }
}

impl ExecutionPlan for ReadExec {
    fn name(&self) -> &str {
        "ReadExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = self.properties.partitioning.partition_count();
        Ok(Arc::new(Self::new(self.name.clone(), children.swap_remove(0), partitions)))
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        super::recompute_children(self, children)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.stage.metrics())
    }

    fn child_stats_requests(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match args.partition() {
            // Which tasks a partition will pull is not known.
            Some(_) => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
            None => Ok(Arc::clone(&inputs[0])),
        }
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn gather_filters_for_pushdown(
        &self,
        _phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        FilterDescription::from_children(parent_filters, &self.children())
    }
}

impl TaskPlan for ReadExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let (input, next_task, total) = (Arc::clone(&self.input), Arc::clone(&self.next_task), self.num_tasks());
        let tasks = stream::iter(std::iter::from_fn(move || {
            let index = next_task.fetch_add(1, Relaxed);
            (index < total).then(|| {
                let batches = input.execute(index, Arc::clone(&context))?;
                Ok(Task { id: TaskId::root(index), batches })
            })
        }));
        Ok(tasks.boxed())
    }

    fn stage_name(&self) -> String {
        self.name.clone()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }
}
