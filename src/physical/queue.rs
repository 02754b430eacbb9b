//! The out queue between two stages that may not fuse: each partition's blocks wait in the store, two at the most.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    PlanProperties, ReplaceChildrenOptions,
};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;

use super::StageMetrics;
use super::input_order::InputOrder;
use super::memory::block_bytes;
use super::rows_of_input;
use super::tasks::{
    TaskPlan, TaskStream, block_stream, execute_tasks, is_ordered, owner_of, properties, task_of_block,
};
use crate::block::TaskId;
use crate::runtime::Drivers;
use crate::store::{BlockHandle, BlockStore, NextUse};

/// Blocks that a partition may have produced without the next stage having taken them.
const QUEUED_BLOCKS: usize = 2;

/// Ends one stage and starts another: every block of the input becomes a task.
#[derive(Debug)]
pub(crate) struct QueueExec {
    input: Arc<dyn ExecutionPlan>,
    input_order: InputOrder,
    properties: Arc<PlanProperties>,
    stage: StageMetrics,
}

impl QueueExec {
    /// A queue behind `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = properties(input.schema(), partitions, EmissionType::Incremental);
        let input_order = InputOrder::of(input.as_ref());
        Self { input, input_order, properties, stage: StageMetrics::default() }
    }
}

impl DisplayAs for QueueExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match t {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "QueueExec: blocks={QUEUED_BLOCKS}"),
        }
    }
}

impl ExecutionPlan for QueueExec {
    fn name(&self) -> &str {
        "QueueExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.input_order.ordering()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.input_order.distribution()
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
        let input_order = self.input_order.clone();
        Ok(Arc::new(Self { input_order, ..Self::new(children.swap_remove(0)) }))
    }

    without_expressions!();

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
        Ok(rows_of_input(inputs, args, &self.schema()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

impl TaskPlan for QueueExec {
    fn tasks(&self, partition: usize, context: Arc<TaskContext>) -> Result<TaskStream> {
        let store = BlockStore::of_task(&context)?;
        let target = block_bytes(&context)?;
        let owner = owner_of(self, &context);
        let mut blocks = block_stream(&self.input, partition, context, target)?;
        let (send, receive) = mpsc::channel::<(TaskId, BlockHandle)>(QUEUED_BLOCKS);

        let driver = async move {
            while let Some((id, block)) = blocks.try_next().await? {
                if send.send((id, store.put(block, NextUse::Soon, &owner)?)).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let schema = self.schema();
        let state = (receive, Drivers::start([driver]));
        let tasks = stream::try_unfold(state, move |(mut receive, mut driver)| {
            let schema = Arc::clone(&schema);
            async move {
                match receive.recv().await {
                    Some((id, handle)) => Ok(Some((task_of_block(id, schema, handle), (receive, driver)))),
                    None => match driver.next().await {
                        Some(Err(e)) => Err(e),
                        _ => Ok(None),
                    },
                }
            }
        });
        Ok(tasks.boxed())
    }

    fn stage_name(&self) -> String {
        "Queue".to_owned()
    }

    fn stage(&self) -> &StageMetrics {
        &self.stage
    }

    fn is_ordered(&self) -> bool {
        is_ordered(self.input.as_ref())
    }
}
