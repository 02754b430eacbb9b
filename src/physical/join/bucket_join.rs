//! [`BucketJoinExec`].
//!
//! ```text
//! left  ── runs by the hash of the keys ──┐            ┌─ bucket 0: hash join, built from the smaller side
//!                                         ├─ buckets ──┼─ bucket 1: ..
//! right ── runs by the hash of the keys ──┘            └─ bucket 2: too many rows of one key: sort-merge join
//! ```
//!
//! Which side is built from, and how many buckets there are, follows from the bytes that were really written. The side
//! that is expected to be smaller is written first. When it turns out to be small, the other one is not written at all:
//! it streams through one hash join.
//!
//! `NOT IN` writes the rows of its subquery first, which tell whether a null is among them: then nothing is not in
//! them. Otherwise it is an anti join of the rows whose own key is not null, unless the subquery has no rows at all.

use crate::physical::operator::IntoPlan;
use std::any::Any;
use std::ops::RangeInclusive;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, JoinSide, JoinType, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, is_not_null};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{ChildPushdownResult, FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::known_keys::{condition, left_may_be_told, right_may_be_told};
use super::merge::{can_merge, sort_merge};
use super::side::{LEFT, MIN_BUILD_BYTES, RIGHT, Side, add_side_metrics, build_bytes, build_memory, describe_sides};
use super::units::Units;
use crate::physical::StageMetrics;
use crate::physical::exchange::{Cut, KeyEncoding, Runs, Wanted, code_of_null, cuts, equal_parts, exact_parts};
use crate::physical::operator::claims;
use crate::physical::operator::{InputOverlap, InputsWork, Operator, Retention, Starts};
use crate::physical::tasks::Output;
use crate::physical::tasks::{Executions, Joined, RunState};
use crate::physical::tasks::{properties, stream_of};
use crate::runtime::on_io_thread;

/// A bin with so many times the bytes of others is looked at code by code.
const SKEWED: usize = 4;
/// What is larger by this factor than it should be is too large for a hash table.
const TOO_LARGE: usize = 3;

/// A hash join in buckets by the keys.
#[derive(Debug)]
pub(crate) struct BucketJoinExec {
    /// What a bucket runs; its inputs are those of this operator.
    join: HashJoinExec,
    first: JoinSide,
    /// What scans of the right side ask for the keys of the left one.
    told: Option<Arc<DynamicFilterPhysicalExpr>>,
    runs: Executions<Mutex<RunState<Units<Work>>>>,
    properties: Arc<PlanProperties>,
    sides: [StageMetrics; 2],
    metrics: ExecutionPlanMetricsSet,
}

/// What there is to do once the first side has been written.
#[derive(Debug)]
enum Work {
    /// The other side streams through one hash join, partition by partition.
    Stream { join: Arc<dyn ExecutionPlan>, written: Side },
    /// Both sides were written.
    Buckets { left: Side, right: Side, buckets: Vec<Bucket>, target: usize },
    /// There is a null among what no row may be in.
    Nothing,
}

#[derive(Debug)]
struct Bucket {
    range: RangeInclusive<u64>,
    left_bytes: usize,
    right_bytes: usize,
}

impl BucketJoinExec {
    /// The rows that `join` gives, in any order. The side `first`, left or right, is expected to be the smaller one.
    pub(crate) fn new(join: &HashJoinExec, first: JoinSide) -> Result<Self> {
        let partitions = join.properties().partitioning.partition_count();
        Self::with_partitions(join.builder().reset_state().build()?, first, partitions)
    }

    /// The hash join that it stands for.
    pub(crate) fn join(&self) -> &HashJoinExec {
        &self.join
    }

    /// Whether scans of the right side ask for the keys of the left one while it runs.
    pub(crate) fn tells(&self) -> bool {
        self.told.is_some()
    }

    /// The kind of join.
    pub(crate) fn join_type(&self) -> JoinType {
        *self.join.join_type()
    }

    fn with_partitions(join: HashJoinExec, first: JoinSide, partitions: usize) -> Result<Self> {
        let inputs = [join.left(), join.right()].map(|side| side.output_partitioning().partition_count());
        let partitions = inputs.into_iter().max().unwrap_or(1).max(partitions);
        Ok(Self {
            properties: properties(claims::of_rows(&join), partitions, EmissionType::Final),
            join,
            first,
            told: None,
            runs: Executions::default(),
            sides: Default::default(),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    fn start(&self, context: &Arc<TaskContext>) -> Result<Arc<Units<Work>>> {
        describe_sides(&self.sides, context);
        let prepare = Prepare {
            join: self.join.builder().reset_state().build()?,
            first: self.first,
            told: self.told.clone(),
            sides: self.sides.clone(),
            metrics: self.metrics.clone(),
            context: Arc::clone(context),
        };
        Ok(Units::of(prepare.work()))
    }
}

/// Writes the sides of a join.
struct Prepare {
    join: HashJoinExec,
    first: JoinSide,
    told: Option<Arc<DynamicFilterPhysicalExpr>>,
    sides: [StageMetrics; 2],
    metrics: ExecutionPlanMetricsSet,
    context: Arc<TaskContext>,
}

impl Prepare {
    async fn work(mut self) -> Result<Work> {
        let threads = self.context.session_config().target_partitions();
        // One table that all threads share may be as large as theirs together.
        let small = build_memory(&self.context)?;
        let (left, right) = match self.first {
            JoinSide::Right => {
                let notes = !self.join.null_aware && left_may_be_told(*self.join.join_type());
                let right = self.runs(JoinSide::Right, Wanted { notes, ..Wanted::default() }).await?;
                if self.join.null_aware && !self.becomes_anti_join(&right).await? {
                    return Ok(Work::Nothing);
                }
                if build_bytes(&right) <= small {
                    let written = Side::new(right, RIGHT, &self.context);
                    let sources = vec![Arc::clone(self.join.left()), written.source(0..=u64::MAX)?];
                    let join = self.join.builder().with_new_children(sources)?.reset_state().build()?;
                    return Ok(Work::Stream { join: join.swap_inputs(PartitionMode::CollectLeft)?, written });
                }
                (self.runs(JoinSide::Left, among(&right)).await?, right)
            }
            JoinSide::Left | JoinSide::None => {
                let notes = right_may_be_told(*self.join.join_type());
                let left = self.runs(JoinSide::Left, Wanted { notes, ..Wanted::default() }).await?;
                self.tell(&left)?;
                if build_bytes(&left) <= small {
                    let written = Side::new(left, LEFT, &self.context);
                    let sources = vec![written.source(0..=u64::MAX)?, Arc::clone(self.join.right())];
                    let join = self.join.builder().with_new_children(sources)?.reset_state();
                    let join = join.with_partition_mode(PartitionMode::CollectLeft).build_exec()?;
                    return Ok(Work::Stream { join, written });
                }
                let right = self.runs(JoinSide::Right, among(&left)).await?;
                (left, right)
            }
        };
        let from_left = left.bytes() <= right.bytes();
        let (smaller, larger) = if from_left { (&left, &right) } else { (&right, &left) };
        // Of the bytes of the rows: they are what is cut.
        let rows_part = smaller.bytes() as f64 / build_bytes(smaller).max(1) as f64;
        let target = ((build_memory(&self.context)? / threads) as f64 * rows_part) as usize;
        let target = target.max(MIN_BUILD_BYTES);
        let (other_bins, counted) = (larger.bins(), Arc::clone(smaller));
        let cut =
            on_io_thread(move || cuts(counted.bins(), target, threads, |cut, target| split(&counted, cut, target)));
        let bucket = |Cut { range, bytes }: Cut| {
            // The other side may have all rows of a piece in any part of it.
            let width = (1u128 << 64) / other_bins.len() as u128;
            let place = |code: u64| (u128::from(code) / width) as usize;
            let other: usize = other_bins[place(*range.start())..=place(*range.end())].iter().sum();
            let (left_bytes, right_bytes) = if from_left { (bytes, other) } else { (other, bytes) };
            Bucket { range, left_bytes, right_bytes }
        };
        let buckets: Vec<_> = cut.await?.into_iter().map(bucket).collect();
        MetricBuilder::new(&self.metrics).global_counter("buckets").add(buckets.len());
        let (left, right) = (Side::new(left, LEFT, &self.context), Side::new(right, RIGHT, &self.context));
        Ok(Work::Buckets { left, right, buckets, target })
    }

    /// Makes a join for `NOT IN`, of which the right side is there, one that does not look for nulls. Returns whether
    /// it gives any rows.
    async fn becomes_anti_join(&mut self, right: &Arc<Runs>) -> Result<bool> {
        let Some((left_key, right_key)) = self.join.on().first().cloned() else {
            return internal_err!("a join for NOT IN has no key");
        };
        let code = code_of_null(&right_key.data_type(right.schema())?)?;
        let mut rows = right.stream(0..right.len(), code..=code);
        while let Some(batch) = rows.try_next().await? {
            if right_key.evaluate(&batch)?.into_array(batch.num_rows())?.logical_null_count() > 0 {
                return Ok(false);
            }
        }
        let mut left = Arc::clone(self.join.left());
        if right.num_rows() > 0 {
            left = Arc::new(FilterExec::try_new(is_not_null(left_key)?, left)?);
        }
        let sides = vec![left, Arc::clone(self.join.right())];
        self.join = self.join.builder().with_null_aware(false).with_new_children(sides)?.reset_state().build()?;
        Ok(true)
    }

    /// Tells the scans of the right side what the left one has.
    fn tell(&self, left: &Runs) -> Result<()> {
        let Some((told, seen)) = self.told.as_ref().zip(left.seen()) else { return Ok(()) };
        let keys: Vec<_> = self.join.on().iter().map(|(_, right)| Arc::clone(right)).collect();
        told.update(condition(seen, &keys, self.join.null_equality()))?;
        told.mark_complete();
        Ok(())
    }

    async fn runs(&self, side: JoinSide, wanted: Wanted) -> Result<Arc<Runs>> {
        let (left_keys, right_keys) = self.join.on().iter().cloned().unzip();
        let (input, stage, keys) = match side {
            JoinSide::Right => (self.join.right(), &self.sides[1], right_keys),
            JoinSide::Left | JoinSide::None => (self.join.left(), &self.sides[0], left_keys),
        };
        let runs = Runs::collect(input, &self.context, stage, KeyEncoding::Hash { keys }, None, wanted).await?;
        if runs.left_out() > 0 {
            MetricBuilder::new(&self.metrics).global_counter("unmatched_rows").add(runs.left_out());
        }
        Ok(Arc::new(runs))
    }
}

/// Rows with keys that the other side may have.
fn among(other: &Runs) -> Wanted {
    let seen = other.seen().filter(|seen| seen.tells()).cloned();
    Wanted { seen, ..Wanted::default() }
}

/// Cuts what one bin has of a side. Where that is much more than others have, some key has many rows.
fn split(side: &Runs, cut: Cut, target: usize) -> Result<Vec<Cut>> {
    let mean = side.bytes() / side.bins().len().max(1);
    match cut.bytes > SKEWED * mean {
        true => Ok(exact_parts(&cut, &side.codes(&cut.range)?, target)),
        false => Ok(equal_parts(&cut, target)),
    }
}

impl Work {
    /// The sides that were written.
    fn written(&self) -> impl Iterator<Item = &Side> {
        let sides = match self {
            Self::Stream { written, .. } => [Some(written), None],
            Self::Buckets { left, right, .. } => [Some(left), Some(right)],
            Self::Nothing => [None, None],
        };
        sides.into_iter().flatten()
    }

    /// The rows of unit number `index`, if there is one.
    fn run(
        &self,
        index: usize,
        join: &HashJoinExec,
        metrics: &ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Option<SendableRecordBatchStream>> {
        match self {
            Self::Stream { join, .. } => match index < join.output_partitioning().partition_count() {
                true => join.execute(index, Arc::clone(context)).map(Some),
                false => Ok(None),
            },
            Self::Nothing => Ok(None),
            Self::Buckets { left, right, buckets, target } => {
                let Some(bucket) = buckets.get(index) else {
                    return Ok(None);
                };
                let sources = vec![left.source(bucket.range.clone())?, right.source(bucket.range.clone())?];
                // Nulls were seen to when the sides were written.
                let join = join.builder().with_null_aware(false).with_new_children(sources)?.reset_state();
                let join = join.with_partition_mode(PartitionMode::CollectLeft).build()?;
                let count = |what: &'static str| MetricBuilder::new(metrics).global_counter(what).add(1);
                let smaller = bucket.left_bytes.min(bucket.right_bytes);
                let plan = if smaller > TOO_LARGE * target && can_merge(&join) {
                    count("merged_buckets");
                    sort_merge(&join)?
                } else if bucket.right_bytes < bucket.left_bytes {
                    count("built_from_right");
                    join.swap_inputs(PartitionMode::CollectLeft)?
                } else {
                    count("built_from_left");
                    Arc::new(join)
                };
                plan.execute(0, Arc::clone(context)).map(Some)
            }
        }
    }
}

impl BucketJoinExec {
    /// The pairs of keys.
    fn keys(&self) -> String {
        let on: Vec<String> = self.join.on().iter().map(|(left, right)| format!("({left}, {right})")).collect();
        on.join(", ")
    }
}

impl Operator for BucketJoinExec {
    fn name(&self) -> &'static str {
        "BucketJoinExec"
    }

    fn describe(&self) -> String {
        let filter = self.join.filter().map_or_else(String::new, |filter| format!(", filter={}", filter.expression()));
        format!("join_type={}, on=[{}]{filter}", self.join.join_type(), self.keys())
    }

    fn describe_in_tree(&self) -> String {
        format!("join_type={}\non={}", self.join.join_type(), self.keys())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn inputs(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.join.left(), self.join.right()]
    }

    fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let join = self.join.builder().with_new_children(inputs)?.reset_state().build()?;
        let partitions = self.properties.partitioning.partition_count();
        let told = self.told.clone();
        Ok(Self { told, ..Self::with_partitions(join, self.first, partitions)? }.into_plan())
    }

    fn filters_for_inputs(
        &self,
        filters: &[Arc<dyn PhysicalExpr>],
        phase: FilterPushdownPhase,
        config: &ConfigOptions,
    ) -> Result<Option<FilterDescription>> {
        // As a join whose left side is there before its right one begins.
        let join = self.join.builder().with_partition_mode(PartitionMode::CollectLeft).build()?;
        let tells = self.told.is_none() && self.first != JoinSide::Right;
        let phase = if tells { phase } else { FilterPushdownPhase::Pre };
        join.gather_filters_for_pushdown(phase, filters.to_vec(), config).map(Some)
    }

    fn with_filters_taken(&self, taken: &ChildPushdownResult) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let own = taken.self_filters.get(1).and_then(|of_right| of_right.first());
        let predicate = own.map(|own| Arc::clone(&own.predicate) as Arc<dyn Any + Send + Sync>);
        let told = predicate.and_then(|own| own.downcast().ok());
        let Some(told) = told else { return Ok(None) };
        let join = self.join.builder().reset_state().build()?;
        let partitions = self.properties.partitioning.partition_count();
        let anew = Self::with_partitions(join, self.first, partitions)?;
        Ok(Some(Self { told: Some(told), ..anew }.into_plan()))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let filter = self.join.filter().map(|filter| filter.expression());
        apply_expression_roots(self.join.on().iter().flat_map(|(left, right)| [left, right]).chain(filter), f)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let run = self.runs.join(partition, &context);
        let execution = match run.lock().join("a join", || self.start(&context))? {
            Joined::Work(work) => work,
            Joined::Nothing(none) => return Ok(stream_of(self.schema(), none.stream())),
        };
        let join = self.join.builder().reset_state().build()?;
        let (metrics, rows) = (self.metrics.clone(), MetricBuilder::new(&self.metrics).output_rows(partition));
        let state = (execution, run, join, metrics, context);
        let units = stream::try_unfold(state, |(execution, run, join, metrics, context)| async move {
            let work = execution.work().await?;
            let mut begin: Vec<_> = work.written().map(|side| side.balance.output()).collect();
            let index = execution.next();
            let unit = work.run(index, &join, &metrics, &context)?;
            // What the unit reads has outputs of its own now.
            begin.iter_mut().try_for_each(Output::end)?;
            match unit {
                Some(batches) => {
                    run.lock().gives();
                    Ok(Some((batches, (execution, run, join, metrics, context))))
                }
                None => {
                    work.written().try_for_each(|side| side.balance.all_begun())?;
                    run.lock().ends();
                    Ok::<_, DataFusionError>(None)
                }
            }
        });
        let batches = units.try_flatten().inspect_ok(move |batch| rows.add(batch.num_rows()));
        Ok(stream_of(self.schema(), batches.boxed()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.metrics.clone_inner();
        add_side_metrics(&mut metrics, &self.sides);
        Some(metrics)
    }

    fn inputs_work(&self) -> InputsWork {
        InputsWork::InTurn
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
