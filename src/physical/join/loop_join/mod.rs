//! [`LoopJoinExec`].
//!
//! ```text
//! left  ── sorted by the key ──────────────┐   for each row of the right side the rows that its bounds leave,
//!                                          ├── found by two searches, or by one in a tree
//! right ── streams, partition by partition ┘
//! ```
//!
//! DataFusion compares each row with each other. Comparisons with `<`, `<=`, `>` and `>=` say where in an order the
//! matches of a row are: the left side is sorted by what is compared, and a row looks up the range that is left. A
//! second comparison with something else, as the end of an interval whose beginning is the key, is looked up in a tree
//! of maxima over that range, in logarithmic time for each match. The rest of the condition is evaluated for the pairs
//! that were found, and for all pairs where there is no such comparison.
//!
//! A left side that is too large is written, as the right one is then: part after part is held in memory, and all of
//! the right side is looked up in each.

mod bounds;
mod build;
mod keys;
mod max_tree;
mod probe;
mod sizes;
mod work;

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, JoinType, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::joins::utils::build_join_schema;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use self::bounds::Bounds;
use self::probe::Shape;
use self::work::{Prepare, Work};
use super::side::{add_side_metrics, describe_sides};
use super::units::Units;
use crate::physical::StageMetrics;
use crate::physical::operator::{InputOverlap, InputsWork, IntoPlan, Operator, Retention, Starts, claims};
use crate::physical::tasks::{Executions, Joined, RunState, properties, stream_of};

/// A join on any condition.
#[derive(Debug)]
pub(crate) struct LoopJoinExec {
    /// What it stands for; its inputs are those of this operator.
    join: NestedLoopJoinExec,
    shape: Arc<Shape>,
    runs: Executions<Mutex<RunState<Units<Work>>>>,
    properties: Arc<PlanProperties>,
    sides: [StageMetrics; 2],
    metrics: ExecutionPlanMetricsSet,
}

impl LoopJoinExec {
    /// The rows that `join` gives, in any order.
    pub(crate) fn new(join: &NestedLoopJoinExec) -> Result<Self> {
        Self::over(join, Arc::clone(join.left()), Arc::clone(join.right()))
    }

    /// The kind of join.
    pub(crate) fn join_type(&self) -> JoinType {
        *self.join.join_type()
    }

    fn over(of: &NestedLoopJoinExec, left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let projection = of.projection().as_ref().map(|columns| columns.to_vec());
        let join = NestedLoopJoinExec::try_new(left, right, of.filter().cloned(), of.join_type(), projection)?;
        let (of_left, of_right) = (join.left().schema(), join.right().schema());
        let (_, mut columns) = build_join_schema(&of_left, &of_right, join.join_type());
        if let Some(projection) = join.projection() {
            columns = projection.iter().map(|column| columns[*column].clone()).collect();
        }
        let shape = Shape {
            join_type: *join.join_type(),
            schema: join.schema(),
            columns,
            bounds: join.filter().and_then(|filter| Bounds::of(filter, &of_left, &of_right)),
            filter: join.filter().cloned(),
            left: of_left,
            right: of_right,
        };
        let partitions = join.right().output_partitioning().partition_count();
        Ok(Self {
            properties: properties(claims::of_rows(&join), partitions, EmissionType::Final),
            join,
            shape: Arc::new(shape),
            runs: Executions::default(),
            sides: Default::default(),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    fn start(&self, context: &Arc<TaskContext>) -> Arc<Units<Work>> {
        describe_sides(&self.sides, context);
        let prepare = Prepare {
            shape: Arc::clone(&self.shape),
            left: Arc::clone(self.join.left()),
            right: Arc::clone(self.join.right()),
            sides: self.sides.clone(),
            metrics: self.metrics.clone(),
            context: Arc::clone(context),
        };
        Units::of(prepare.work())
    }
}

impl Operator for LoopJoinExec {
    fn name(&self) -> &'static str {
        "LoopJoinExec"
    }

    fn describe(&self) -> String {
        let found = self.shape.bounds.as_ref().map_or_else(String::new, |bounds| format!(", looked up by=[{bounds}]"));
        let filter = self.join.filter().map_or_else(String::new, |filter| format!(", filter={}", filter.expression()));
        let given = self.join.projection().as_ref().map_or_else(String::new, |columns| {
            let (joined, _) = build_join_schema(&self.shape.left, &self.shape.right, self.join.join_type());
            let given = columns.iter().map(|column| format!("{}@{column}", joined.field(*column).name()));
            format!(", projection=[{}]", given.collect::<Vec<_>>().join(", "))
        });
        format!("join_type={}{filter}{found}{given}", self.join.join_type())
    }

    fn describe_in_tree(&self) -> String {
        let filter = self.join.filter().map_or_else(String::new, |filter| format!("\nfilter={}", filter.expression()));
        format!("join_type={}{filter}", self.join.join_type())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.join.left(), self.join.right()]
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let [left, right] = <[_; 2]>::try_from(inputs)
            .map_err(|inputs| DataFusionError::Internal(format!("a join of {} inputs", inputs.len())))?;
        Ok(Self::over(&self.join, left, right)?.into_plan())
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false, true]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.join.filter().map(|filter| filter.expression()), f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let run = self.runs.join(partition, &context);
        let units = match run.lock().join("a join", || Ok(self.start(&context)))? {
            Joined::Work(work) => work,
            Joined::Nothing(none) => return Ok(stream_of(self.schema(), none.stream())),
        };
        let rows = MetricBuilder::new(&self.metrics).output_rows(partition);
        let batches = stream::try_unfold((units, run), |(units, run)| async move {
            let unit = units.work().await?.run(units.next())?;
            match unit {
                Some(batches) => {
                    run.lock().gives();
                    Ok(Some((batches, (units, run))))
                }
                None => {
                    run.lock().ends();
                    Ok::<_, DataFusionError>(None)
                }
            }
        });
        let batches = batches.try_flatten().inspect_ok(move |batch| rows.add(batch.num_rows()));
        Ok(stream_of(self.schema(), batches.boxed()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.metrics.clone_inner();
        add_side_metrics(&mut metrics, &self.sides);
        Some(metrics)
    }

    fn inputs_work(&self) -> InputsWork {
        InputsWork::FirstBeforeSecond
    }

    fn starts(&self) -> Starts {
        Starts::WhenAsked
    }

    fn keeps(&self) -> Retention {
        Retention::Blocks { until_input_ends: false }
    }

    fn brings_together(&self) -> InputOverlap {
        InputOverlap::SideBySide
    }

    fn min_bytes(&self, batch_bytes: usize) -> Option<usize> {
        Some(self.properties.partitioning.partition_count() * 2 * batch_bytes)
    }
}
