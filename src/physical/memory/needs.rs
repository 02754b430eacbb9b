//! What the operators of a plan cannot do without, and which of them work at the same time.

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::physical::operator::{InputsWork, Operator, PlanExt, Retention, Starts, stages_below};

/// Aggregate functions whose state has as many values as their input.
const COLLECTING: [&str; 5] = ["array_agg", "string_agg", "median", "percentile_cont", "nth_value"];
/// What a grouping aggregate has to be able to hold to get ahead.
const MIN_AGGREGATE_BYTES: usize = 1 << 20;

/// What one operator cannot do without.
#[derive(Debug, Clone)]
pub(crate) struct Need {
    pub(crate) operator: String,
    pub(crate) bytes: usize,
}

/// What the operators of a plan cannot do without.
#[derive(Debug, Clone, Default)]
pub(crate) struct Needs {
    /// Those that work while rows of the plan come out.
    pub(crate) live: Vec<Need>,
    /// Those that work when most is needed.
    pub(crate) peak: Vec<Need>,
}

impl Needs {
    /// Of `plan`, with batches of `batch_bytes` and sorts that set `sort_bytes` aside for their merges.
    pub(crate) fn of(plan: &dyn ExecutionPlan, batch_bytes: usize, sort_bytes: usize) -> Self {
        Self::at_once(plan, &|plan| need(plan, batch_bytes, sort_bytes))
    }

    /// The same, where `need` says what each operator cannot do without.
    fn at_once(plan: &dyn ExecutionPlan, need: &impl Fn(&dyn ExecutionPlan) -> Option<Need>) -> Self {
        let children = stages_below(plan).into_iter();
        let below: Vec<Self> = children.map(|child| Self::at_once(child.as_ref(), need)).collect();
        let own = need(plan);
        let Self { mut live, mut peak } = match inputs_of(plan) {
            InputsWork::InputOverlap => Self::together(below),
            InputsWork::FirstBeforeSecond => Self::first_before_second(below, own.as_ref()),
            InputsWork::InTurn => Self::in_turn(below),
            InputsWork::SeveralOfIt(times) => Self::together(below.into_iter().cycle().take(times).collect()),
        };
        live.extend(own.clone());
        if total(&live) > total(&peak) {
            peak.clone_from(&live);
        }
        // Most exchanges give their first row when all below them have ended.
        if plan.as_operator().is_some_and(|operator| operator.keeps() == Retention::Blocks { until_input_ends: true }) {
            live = own.into_iter().collect();
        }
        Self { live, peak }
    }

    fn together(below: Vec<Self>) -> Self {
        below.into_iter().fold(Self::default(), |mut all, next| {
            all.live.extend(next.live);
            all.peak.extend(next.peak);
            all
        })
    }

    fn first_before_second(mut below: Vec<Self>, own: Option<&Need>) -> Self {
        let second = below.pop().unwrap_or_default();
        let first = Self::together(below);
        // What the operator keeps of the first is there while the second works.
        let after: Vec<Need> = second.peak.into_iter().chain(own.cloned()).collect();
        Self { live: second.live, peak: larger(first.peak, after) }
    }

    fn in_turn(below: Vec<Self>) -> Self {
        below.into_iter().fold(Self::default(), |all, next| Self {
            live: larger(all.live, next.live),
            peak: larger(all.peak, next.peak),
        })
    }
}

/// How many stages of a plan build blocks, or sort them, at the same time, at most.
pub(crate) fn builders_at_once(plan: &dyn ExecutionPlan) -> usize {
    let builder = |plan: &dyn ExecutionPlan| builds(plan).then(|| Need { operator: plan.name().to_owned(), bytes: 1 });
    total(&Needs::at_once(plan, &builder).peak)
}

/// Whether the tasks of an operator build blocks, or sort them.
pub(crate) fn builds(plan: &dyn ExecutionPlan) -> bool {
    matches!(plan.as_operator().map(Operator::keeps), Some(Retention::Blocks { .. }))
}

/// The bytes of all.
pub(crate) fn total(needs: &[Need]) -> usize {
    needs.iter().map(|need| need.bytes).fold(0, usize::saturating_add)
}

fn larger(some: Vec<Need>, others: Vec<Need>) -> Vec<Need> {
    if total(&others) > total(&some) { others } else { some }
}

fn inputs_of(plan: &dyn ExecutionPlan) -> InputsWork {
    if let Some(operator) = plan.as_operator() {
        return operator.inputs_work();
    }
    let keeps_first = plan.is::<HashJoinExec>() || plan.is::<CrossJoinExec>() || plan.is::<NestedLoopJoinExec>();
    match plan.children().as_slice() {
        [_, second] if keeps_first && !starts_at_once(second.as_ref()) => InputsWork::FirstBeforeSecond,
        _ => InputsWork::InputOverlap,
    }
}

/// Whether a plan starts to work when it is executed, and not when its first row is asked for.
fn starts_at_once(plan: &dyn ExecutionPlan) -> bool {
    let starts = plan.as_operator().map_or(Starts::AsInputs, Operator::starts);
    let gathers = plan.is::<CoalescePartitionsExec>() || plan.is::<SortPreservingMergeExec>();
    match starts {
        Starts::WhenExecuted => true,
        Starts::WhenAsked => false,
        Starts::AsInputs if plan.is::<RepartitionExec>() => false,
        Starts::AsInputs => gathers || plan.children().into_iter().any(|child| starts_at_once(child.as_ref())),
    }
}

/// What an operator needs of its own, beside what those below it need.
fn need(plan: &dyn ExecutionPlan, batch_bytes: usize, sort_bytes: usize) -> Option<Need> {
    let streams = plan.output_partitioning().partition_count();
    let bytes = if let Some(operator) = plan.as_operator() {
        operator.min_bytes(batch_bytes)?
    } else if plan.is::<CrossJoinExec>() || plan.is::<NestedLoopJoinExec>() {
        known_bytes(plan.children()[0].as_ref())
    } else if plan.is::<SortExec>() && plan.fetch().is_none() {
        sort_streams(plan) * (sort_bytes + 4 * batch_bytes)
    } else if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        merge.input().output_partitioning().partition_count() * 2 * batch_bytes
    } else if groups(plan) {
        streams * MIN_AGGREGATE_BYTES
    } else if plan.is::<AggregateExec>() {
        collected_bytes(plan)
    } else if plan.is::<SortMergeJoinExec>() {
        streams * 2 * batch_bytes
    } else {
        return None;
    };
    Some(Need { operator: plan.name().to_owned(), bytes })
}

/// Bytes that the rows of a plan take for sure: nothing where their number is an estimate, and nothing for texts.
pub(crate) fn known_bytes(plan: &dyn ExecutionPlan) -> usize {
    let fields = plan.schema().fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(0)).sum();
    known_rows(plan).saturating_mul(fields)
}

/// Bytes of the values that an aggregate of all rows keeps, as far as they are known in the same way.
fn collected_bytes(plan: &dyn ExecutionPlan) -> usize {
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>().filter(|a| *a.mode() == AggregateMode::Single) else {
        return 0;
    };
    let schema = aggregate.input_schema();
    let width = |value: &Arc<dyn PhysicalExpr>| value.data_type(&schema).ok()?.primitive_width();
    let keeps = |(function, filter): &(&Arc<AggregateFunctionExpr>, &Option<_>)| {
        collects(function) && !function.is_distinct() && filter.is_none()
    };
    let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr()).filter(keeps);
    let values = functions.filter_map(|(function, _)| function.expressions().first().and_then(width));
    known_rows(aggregate.input().as_ref()).saturating_mul(values.sum())
}

/// The number of rows of a plan, where it is known from the start; 0 otherwise.
fn known_rows(plan: &dyn ExecutionPlan) -> usize {
    let statistics = StatisticsContext::new().compute(plan, &StatisticsArgs::new());
    match statistics.map(|s| s.num_rows) {
        Ok(Precision::Exact(rows)) => rows,
        _ => 0,
    }
}

/// Sorts of an operator that may be under way at once.
pub(crate) fn sort_streams(plan: &dyn ExecutionPlan) -> usize {
    match plan.is::<SortExec>() && plan.fetch().is_none() {
        true => plan.children()[0].output_partitioning().partition_count(),
        false => 0,
    }
}

/// Whether it is an aggregate that holds groups.
pub(crate) fn groups(plan: &dyn ExecutionPlan) -> bool {
    plan.downcast_ref::<AggregateExec>().is_some_and(|a| !a.group_expr().is_empty())
}

/// Whether an aggregate function keeps all values that it gets.
pub(crate) fn collects(function: &AggregateFunctionExpr) -> bool {
    COLLECTING.contains(&function.fun().name())
}
