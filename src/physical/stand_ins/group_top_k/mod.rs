//! Drops rows that are not among the first of their group, before they are exchanged and sorted for a window that
//! numbers them.
//!
//! ```text
//! SELECT .. WHERE row_number() OVER (PARTITION BY g ORDER BY v) <= 2
//!
//! rows of g = 1, v:   5 3 9 4 1 7 ..
//!                     5 3 . 4 1 .      given: two of the rows until then are before the others
//! ```
//!
//! Of each group the places of the first k rows are kept, not the rows. A row is dropped when k others are before it,
//! so what is given has all rows that the window would number 1 to k, among some that come too late; the window and the
//! condition above it are evaluated as before. Rows are held for a while, since in rows that come in the opposite
//! order, as the last event of each user in a log, each would be among the first until then. What is kept may be
//! forgotten at any time: then more rows are given. That happens when it takes too much memory. Where few rows are
//! dropped, as of keys that are nearly unique, all are passed on.

mod top;
mod tops;

pub(crate) use top::TopOfGroups;

use std::sync::Arc;

use datafusion::arrow::array::{BooleanArray, BooleanBufferBuilder, RecordBatch};
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

use crate::block::sliced_bytes;
use crate::physical::operator::{IntoPlan, Operator};
use crate::physical::rows_of_input;
use crate::physical::tasks::stream_of;
use crate::store::BlockStore;

use tops::{Candidate, Tops};

/// What all streams may hold together is this part of the limit, and as much again what they keep of groups.
const PART_OF_LIMIT: usize = 16;
/// A stream holds no more rows than of so many bytes, and keeps no more of groups than several times as much.
const MOST_HELD: usize = 32 << 20;
const MOST_KEPT: usize = 4 * MOST_HELD;
/// After so many rows it is seen whether enough are dropped:
const TRIED_ROWS: usize = 1 << 19;
/// one of so many.
const LEAST_DROPPED: usize = 4;

/// The rows of its input, without some that are not among the first of their group.
#[derive(Debug)]
pub(crate) struct GroupTopKExec {
    input: Arc<dyn ExecutionPlan>,
    top: TopOfGroups,
    metrics: ExecutionPlanMetricsSet,
}

impl GroupTopKExec {
    /// Of the rows of each stream of `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, top: TopOfGroups) -> Self {
        Self { input, top, metrics: ExecutionPlanMetricsSet::new() }
    }

    pub(crate) fn top(&self) -> &TopOfGroups {
        &self.top
    }
}

impl Operator for GroupTopKExec {
    fn name(&self) -> &'static str {
        "GroupTopKExec"
    }

    fn describe(&self) -> String {
        let TopOfGroups { partition_by, order_by, ranking, k } = &self.top;
        let keys: Vec<String> = partition_by.iter().map(ToString::to_string).collect();
        let order: Vec<String> = order_by.iter().map(ToString::to_string).collect();
        format!("{ranking} <= {k}, by=[{}], order=[{}]", keys.join(", "), order.join(", "))
    }

    fn describe_in_tree(&self) -> String {
        self.describe()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut next = TreeNodeRecursion::Continue;
        for key in self.top.partition_by.iter().chain(self.top.order_by.iter().map(|key| &key.expr)) {
            next = next.visit_sibling(|| f(key))?;
        }
        Ok(next)
    }

    fn with_inputs(&self, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Self::new(inputs.swap_remove(0), self.top.clone()).into_plan())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let streams = self.input.output_partitioning().partition_count().max(1);
        let part = BlockStore::of_task(&context)?.budget().limit() / PART_OF_LIMIT / streams;
        let held = Held {
            tops: Tops::new(&self.top, &self.input.schema())?,
            given: BatchCoalescer::new(self.schema(), context.session_config().batch_size()),
            batches: Vec::new(),
            bytes: 0,
            most_held: part.min(MOST_HELD),
            most_kept: part.min(MOST_KEPT),
            reservation: MemoryConsumer::new(format!("{}[{partition}]", self.name())).register(context.memory_pool()),
            tried: Tried::default(),
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let running = Running { input: Some(self.input.execute(partition, context)?), held: Some(held), metrics };
        let batches = stream::try_unfold(running, |mut running| async move {
            let next: Result<_> = running.next().await;
            next.map(|next| next.map(|batch| (batch, running)))
        });
        Ok(stream_of(self.schema(), batches.boxed()))
    }

    fn input_statistics(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::new(rows_of_input(inputs, args, &self.schema()).as_ref().clone().to_inexact()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}

/// A stream of it.
struct Running {
    /// Until it has ended.
    input: Option<SendableRecordBatchStream>,
    /// Until it is known that nearly all rows are given.
    held: Option<Held>,
    metrics: BaselineMetrics,
}

impl Running {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.held.as_mut().and_then(|held| held.given.next_completed_batch()) {
                return Ok(Some(batch.record_output(&self.metrics)));
            }
            self.held.take_if(|held| held.tried.is_in_vain);
            let Some(input) = &mut self.input else {
                return Ok(None);
            };
            let next = input.try_next().await?;
            let timer = self.metrics.elapsed_compute().clone();
            let _timer = timer.timer();
            match (next, &mut self.held) {
                (Some(batch), Some(held)) => held.take(batch)?,
                (Some(batch), None) => return Ok(Some(batch.record_output(&self.metrics))),
                (None, held) => {
                    self.input = None;
                    held.as_mut().map_or(Ok(()), |held| held.give_all(true))?;
                }
            }
        }
    }
}

/// The last rows, and what is known of their groups.
struct Held {
    tops: Tops,
    /// What has been given, and goes on in batches that are not small.
    given: BatchCoalescer,
    /// Batches, each with those of its rows that were among the first when it came.
    batches: Vec<(RecordBatch, Vec<Candidate>)>,
    /// Of all that waits.
    bytes: usize,
    most_held: usize,
    most_kept: usize,
    reservation: MemoryReservation,
    tried: Tried,
}

impl Held {
    fn take(&mut self, batch: RecordBatch) -> Result<()> {
        self.tried.rows += batch.num_rows();
        let candidates = self.tops.candidates(&batch)?;
        if !candidates.is_empty() {
            self.bytes += sliced_bytes(&batch) + candidates.len() * size_of::<Candidate>();
            self.batches.push((batch, candidates));
        }
        let kept = self.tops.bytes();
        let has_room = kept <= self.most_kept && self.reservation.try_resize(self.bytes + kept).is_ok();
        if !has_room || self.bytes > self.most_held {
            self.give_all(false)?;
        }
        if !has_room {
            self.tops.forget()?;
        }
        if self.batches.is_empty() {
            // What is kept has been asked for, or forgotten.
            let _is_less = self.reservation.try_resize(self.tops.bytes());
        }
        Ok(())
    }

    /// Gives the rows that are still among the first, and holds none. These are the `last`, or more will come.
    fn give_all(&mut self, last: bool) -> Result<()> {
        for (batch, candidates) in std::mem::take(&mut self.batches) {
            let mut is_first = BooleanBufferBuilder::new(batch.num_rows());
            is_first.resize(batch.num_rows());
            for candidate in candidates.iter().filter(|candidate| self.tops.is_first(candidate)) {
                is_first.set_bit(candidate.row as usize, true);
                self.tried.given += 1;
            }
            self.given.push_batch_with_filter(batch, &BooleanArray::new(is_first.finish(), None))?;
        }
        self.bytes = 0;
        self.tried.judge();
        match last || self.tried.is_in_vain {
            true => Ok(self.given.finish_buffered_batch()?),
            false => Ok(()),
        }
    }
}

/// How many rows are dropped.
#[derive(Debug, Default)]
struct Tried {
    rows: usize,
    given: usize,
    is_in_vain: bool,
}

impl Tried {
    fn judge(&mut self) {
        if self.rows < TRIED_ROWS {
            return;
        }
        let dropped = self.rows.saturating_sub(self.given);
        *self = Self { is_in_vain: dropped * LEAST_DROPPED < self.rows, ..Self::default() };
    }
}
