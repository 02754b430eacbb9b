//! Ray's `zip`: row i of the left beside row i of the right, whatever their blocks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties, ReplaceChildrenOptions,
};
use futures::{StreamExt, TryStreamExt, stream};

use super::StageMetrics;
use super::gather::gather;
use super::input_order::InputOrder;
use super::tasks::{Task, TaskPlan, TaskStream, execute_tasks, properties, stream_of};
use crate::block::TaskId;

/// Streams two inputs side by side, in one partition.
#[derive(Debug)]
pub(crate) struct ZipExec {
    inputs: [Arc<dyn ExecutionPlan>; 2],
    input_orders: [InputOrder; 2],
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl ZipExec {
    /// The columns of `left` and then of `right` are those of `schema`.
    pub(crate) fn new(left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>, schema: SchemaRef) -> Self {
        let properties = properties(schema, 1, EmissionType::Incremental);
        let input_orders = [InputOrder::of(left.as_ref()), InputOrder::of(right.as_ref())];
        Self { inputs: [left, right], input_orders, properties, stage: StageMetrics::default() }
    }
}

impl DisplayAs for ZipExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "ZipExec"),
        }
    }
}

impl ExecutionPlan for ZipExec {
    fn name(&self) -> &str {
        "ZipExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.input_orders.iter().flat_map(InputOrder::ordering).collect()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let of = |order: &InputOrder| order.distribution().into_per_child().swap_remove(0);
        InputDistributionRequirements::new(self.input_orders.iter().map(of).collect())
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false, false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let right = children.swap_remove(1);
        let input_orders = self.input_orders.clone();
        Ok(Arc::new(Self { input_orders, ..Self::new(children.swap_remove(0), right, self.schema()) }))
    }

    without_expressions!();

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        execute_tasks(self, partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.stage.metrics())
    }
}

impl TaskPlan for ZipExec {
    fn tasks(&self, _partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let [left, right] = &self.inputs;
        let sides = [
            Side::new(gather(left, Arc::clone(&context), self.stage.owner())?),
            Side::new(gather(right, context, self.stage.owner())?),
        ];
        let schema = self.schema();
        let zipped = stream::try_unfold((sides, Arc::clone(&schema)), |(mut sides, schema)| async move {
            let [left, right] = &mut sides;
            let rows = left.available().await?.min(right.available().await?);
            if rows == 0 {
                let (left, right) = (left.count_all().await?, right.count_all().await?);
                return match left == right {
                    true => Ok(None),
                    false => exec_err!("zip needs equally many rows on both sides, got {left} and {right}"),
                };
            }
            let (left, right) = (left.take(rows), right.take(rows));
            let columns = left.columns().iter().chain(right.columns()).cloned().collect();
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
            Ok(Some((batch, (sides, schema))))
        });
        let task = Task { id: TaskId::root(0), batches: stream_of(schema, zipped.boxed()) };
        Ok(stream::iter([Ok(task)]).boxed())
    }

    fn stage_name(&self) -> String {
        "Zip".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }
}

/// One side: its stream and the batches that were not used up yet.
struct Side {
    stream: SendableRecordBatchStream,
    pending: VecDeque<RecordBatch>,
    taken: usize,
}

impl Side {
    fn new(stream: SendableRecordBatchStream) -> Self {
        Self { stream, pending: VecDeque::new(), taken: 0 }
    }

    /// Rows that can be taken at once; 0 at the end.
    async fn available(&mut self) -> Result<usize> {
        while self.pending.is_empty() {
            match self.stream.try_next().await? {
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => self.pending.push_back(batch),
                None => return Ok(0),
            }
        }
        Ok(self.pending[0].num_rows())
    }

    fn take(&mut self, rows: usize) -> RecordBatch {
        self.taken += rows;
        let front = &mut self.pending[0];
        let out = front.slice(0, rows);
        match front.num_rows() - rows {
            0 => drop(self.pending.pop_front()),
            left => *front = front.slice(rows, left),
        }
        out
    }

    /// Number of rows of the whole side; reads the rest of it.
    async fn count_all(&mut self) -> Result<usize> {
        loop {
            match self.available().await? {
                0 => return Ok(self.taken),
                rows => drop(self.take(rows)),
            }
        }
    }
}
