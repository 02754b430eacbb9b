//! Marks the stages that executors may run, where a session has executors.
//!
//! A stage is what is made of the tasks of one read, each by itself: its steps, and aggregates of what there is. Above
//! the first rows of some order, each stage gives its own. Joins, groups and windows of many rows are part of stages,
//! too: the executors exchange what is below them. So are shuffles and sorts of what each task gives again in the same
//! order: the exchange is marked as one that several processes make. Files of a stage are written by its tasks. It is
//! the last of the rules that change operators, since what it marks has to be the same in all processes that plan a
//! statement.
//!
//! ```text
//! AggregateExec: mode=Final                      AggregateExec: mode=Final
//!   AggregateExec: mode=Partial            ->      RemoteExec: AggregateExec, tasks=200
//!     ReadExec: ReadParquet, tasks=200               AggregateExec: mode=Partial
//!                                                      ReadExec: ReadParquet, tasks=200
//!
//! AggregateExec: mode=FinalPartitioned           RemoteExec: AggregateExec, exchanges=1
//!   RepartitionExec: hash(k)             ->        AggregateExec: mode=FinalPartitioned
//!     AggregateExec: mode=Partial                    RepartitionExec: hash(k)
//!       ReadExec: ReadParquet, tasks=200               RemoteExchangeExec: keys=[k]
//!                                                        AggregateExec: mode=Partial ..
//!
//! ExchangeExec: scheme=random(seed=7)            RemoteExec: RandomShuffleReduce, exchanges=1
//!   ReadExec: ReadParquet, tasks=200     ->        ExchangeExec: scheme=random(seed=7), by executors
//!                                                    ReadExec: ReadParquet, tasks=200
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::{Distribution, Partitioning};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, replace_children_if_necessary};

use super::estimate::expected_rows;
use super::restore_orders::{has_order, in_order};
use crate::config::BlockyardOptions;
use crate::physical::{
    CompactExec, ExchangeExec, GatherExec, IntoPlan, PlanExt, ReadExec, RemoteExchangeExec, RemoteExec, WriteExec,
    equi_join, evaluates_windows, gives_no_left_rows, is_exchanged, is_first_rows_of_stage, is_stage, is_whole,
    is_worthwhile, keeps_partitions,
};

#[derive(Debug)]
pub(super) struct Distribute;

impl PhysicalOptimizerRule for Distribute {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        if options.cluster.trim().is_empty() {
            return Ok(plan);
        }
        let least = options.cluster_exchange_min_rows;
        let plan = plan.transform_up(|node| exchanged(node, least)).data()?;
        marked(&plan)
    }

    fn name(&self) -> &str {
        "distribute"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A plan with its stages marked.
fn marked(node: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if is_worthwhile(node) {
        return Ok(RemoteExec::new(Arc::clone(node)).into_plan());
    }
    if let Some((write, tasks)) = node.operator::<WriteExec>().and_then(|write| Some((write, write.by_tasks()?)))
        && is_stage(tasks.input())
    {
        return Ok(write.of_tasks(RemoteExec::new(tasks.into_plan()).into_plan()).into_plan());
    }
    if is_first_rows_of_stage(node)
        && let Some(first) = first_rows_of_part(node)
    {
        return replace_children_if_necessary(Arc::clone(node), vec![RemoteExec::new(first).into_plan()]);
    }
    let inputs = node.children().into_iter().map(marked).collect::<Result<Vec<_>>>()?;
    let is_same = node.children().into_iter().zip(&inputs).all(|(before, now)| Arc::ptr_eq(before, now));
    match is_same {
        true => Ok(Arc::clone(node)),
        false => replace_children_if_necessary(Arc::clone(node), as_needed(node, inputs)?),
    }
}

/// Inputs of an operator, dealt out among threads and sorted as it needs them: what comes from executors is neither.
fn as_needed(
    node: &Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
    let required = node.input_distribution_requirements().into_per_child();
    let orders = node.required_input_ordering();
    let before = node.children().into_iter().map(|input| input.output_partitioning().clone());
    let inputs = inputs.into_iter().zip(before).zip(required.into_iter().zip(orders));
    let needed = inputs.map(|((input, before), (required, order))| {
        let now = input.output_partitioning();
        let is_wrong = match &required {
            Distribution::KeyPartitioned(_) => {
                !now.satisfaction(&required, input.equivalence_properties(), true).is_satisfied()
            }
            // It puts partitions of the same keys together.
            _ => node.is::<InterleaveExec>() && *now != before,
        };
        // As it was: the other side of a join may be dealt out by fewer keys than the join has.
        let partitioning = match (is_wrong, before, &required) {
            (true, before @ Partitioning::Hash(..), _) => Some(before),
            (true, _, Distribution::KeyPartitioned(keys)) => {
                Some(Partitioning::Hash(keys.clone(), now.partition_count()))
            }
            _ => None,
        };
        let dealt_out = match partitioning {
            Some(partitioning) => Arc::new(RepartitionExec::try_new(input, partitioning)?) as _,
            None => input,
        };
        in_order(dealt_out, order)
    });
    needed.collect()
}

/// A join, a group, a shuffle or a sort of at least so many rows of stages, with these exchanged by executors.
fn exchanged(node: Arc<dyn ExecutionPlan>, least: usize) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(exchange) = node.operator::<ExchangeExec>()
        && has_rows([expected_rows(exchange.input())].into_iter(), least)
    {
        let distributed = exchange.distributed().map(IntoPlan::into_plan).filter(is_stage);
        return Ok(distributed.map_or_else(|| Transformed::no(node), Transformed::yes));
    }
    if evaluates_windows(&node)
        && let Some(by_partitions) = below_windows(&node, least)?
    {
        let is_stage = is_stage(&by_partitions);
        return Ok(if is_stage { Transformed::yes(by_partitions) } else { Transformed::no(node) });
    }
    let exchanged = match (keys_of_inputs(&node), left_of_all(&node)) {
        (Some(keys), _) if has_rows(node.children().into_iter().map(expected_rows), least) => {
            let inputs = node.children().into_iter().zip(keys);
            inputs.map(|(input, keys)| with_exchange(Arc::clone(input), keys)).collect::<Result<_>>()?
        }
        (_, Some(join)) if !is_whole(join.left()) || has_rows(reads(join.left()).into_iter(), least) => {
            vec![with_exchange(Arc::clone(join.left()), Vec::new())?, Arc::clone(join.right())]
        }
        _ => return Ok(Transformed::no(node)),
    };
    let by_executors = replace_children_if_necessary(Arc::clone(&node), exchanged)?;
    let mut orders = by_executors.children().into_iter().zip(by_executors.required_input_ordering());
    let have_orders = orders.all(|(input, order)| has_order(input, order.as_ref()).unwrap_or(false));
    Ok(match have_orders && is_stage(&by_executors) {
        true => Transformed::yes(by_executors),
        false => Transformed::no(node),
    })
}

/// Windows of at least so many rows, with these exchanged by the keys by which they are dealt out among threads.
fn below_windows(node: &Arc<dyn ExecutionPlan>, least: usize) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let children = node.children();
    let [input] = children.as_slice() else { return Ok(None) };
    if let Some(Partitioning::Hash(keys, _)) = node.downcast_ref::<RepartitionExec>().map(RepartitionExec::partitioning)
    {
        let are_enough = !is_exchanged(node) && has_rows([expected_rows(input)].into_iter(), least);
        return are_enough.then(|| with_exchange(Arc::clone(node), keys.clone())).transpose();
    }
    match keeps_partitions(node) {
        true => below_windows(input, least)?
            .map(|below| replace_children_if_necessary(Arc::clone(node), vec![below]))
            .transpose(),
        false => Ok(None),
    }
}

/// Whether these are so many rows together, or may be.
fn has_rows(mut parts: impl Iterator<Item = Option<usize>>, least: usize) -> bool {
    let rows = parts.try_fold(0, |all: usize, rows| Some(all.saturating_add(rows?)));
    rows.is_none_or(|rows| rows >= least)
}

/// The rows of the reads of a plan. To make a side of a join of many takes longer than to get it.
fn reads(plan: &Arc<dyn ExecutionPlan>) -> Vec<Option<usize>> {
    match plan.is_operator::<ReadExec>() {
        true => vec![expected_rows(plan)],
        false => plan.children().into_iter().flat_map(reads).collect(),
    }
}

/// A join with all of its left side wherever some of its right one is.
fn left_of_all(node: &Arc<dyn ExecutionPlan>) -> Option<&HashJoinExec> {
    let join = node.downcast_ref::<HashJoinExec>()?;
    let has_all = *join.partition_mode() == PartitionMode::CollectLeft && gives_no_left_rows(*join.join_type());
    has_all.then_some(join)
}

/// An input with an exchange by its keys, or of all rows to each where it has none, below what deals it out among
/// threads.
fn with_exchange(input: Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn ExecutionPlan>> {
    let is_above = input.is::<RepartitionExec>()
        || input.is::<CoalescePartitionsExec>()
        || input.is_operator::<CompactExec>()
        || input.is_operator::<GatherExec>();
    match (is_above, input.children().as_slice()) {
        (true, [below]) => {
            let below = with_exchange(Arc::clone(below), keys)?;
            replace_children_if_necessary(input, vec![below])
        }
        _ => Ok(RemoteExchangeExec::new(input, keys).into_plan()),
    }
}

/// What the rows of each input of a join or a group are brought together by, if nothing but that is done with them.
fn keys_of_inputs(node: &Arc<dyn ExecutionPlan>) -> Option<Vec<Vec<Arc<dyn PhysicalExpr>>>> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        let groups = aggregate.group_expr();
        let brings_together = match aggregate.mode() {
            AggregateMode::FinalPartitioned => true,
            AggregateMode::SinglePartitioned => groups.is_single(),
            _ => false,
        };
        return (brings_together && !groups.is_empty()).then(|| vec![groups.input_exprs()]);
    }
    let join = equi_join(node)?;
    // A row of the left side that nobody has found among some rows of the right one may be found among others.
    let is_dealt_out = left_of_all(node).is_none();
    let (left, right) = join.on().iter().cloned().unzip();
    is_dealt_out.then(|| vec![left, right])
}

/// The same first rows by a sort of its own: one that gives its rows to another, and has the filter of that, would tell
/// it to leave out what it is about to give.
fn first_rows_of_part(sort: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let sort = sort.downcast_ref::<SortExec>()?;
    let own = SortExec::new(sort.expr().clone(), Arc::clone(sort.input())).with_fetch(sort.fetch());
    Some(Arc::new(own.with_preserve_partitioning(sort.preserve_partitioning())))
}
