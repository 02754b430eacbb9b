//! Sorts of much data become an exchange: runs are sorted by the threads that read, and buckets of them merged and
//! written by several threads. DataFusion's own sort merges everything in one.
//!
//! Correct because buckets are ranges of the order and gathered in order. A sort stays DataFusion's when it is for the
//! first rows only, when it is known to be small and need not be stable, and when nothing below it is ours.
//!
//! DataFusion keeps the first rows (`LIMIT`, with those that `OFFSET` skips) in memory. Where they are many, or wide,
//! or turned out not to fit, all rows are sorted, which spills, and the first are taken.
//!
//! ```text
//! SortPreservingMergeExec: [k ASC]        GatherExec: order=[k ASC]
//!   SortExec: [k ASC]                ->     ExchangeExec: scheme=range(k ASC)
//!     ReadExec: ReadParquet                   ReadExec: ReadParquet
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use crate::config::BlockyardOptions;
use crate::physical::{ExchangeExec, GatherExec, IntoPlan, Operator, RangeScheme, can_sort, row_bytes, uses_ours};

/// What is known to have fewer bytes is sorted at once.
const SMALL: usize = 64 << 20;
/// The same as a part of the memory limit.
const SMALL_PART: usize = 16;
/// First rows that take at most this part of the limit, once for each thread, are kept in memory.
const FIRST_ROWS_PART: usize = 16;

#[derive(Debug)]
pub(super) struct ExchangeSorts;

impl PhysicalOptimizerRule for ExchangeSorts {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        let limit = options.memory_limit.bytes();
        let threads = config.execution.target_partitions;
        let spills = options.prefer_spilling_sorts;
        let keeps = |rows: usize, input: &dyn ExecutionPlan| {
            !spills && rows.saturating_mul(threads * row_bytes(input)) <= limit / FIRST_ROWS_PART
        };
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            let Some(Sorted { input, order, fetch }) = sorted(&node) else {
                let merged = merged_anew(&node, threads).filter(|_| options.prefer_resumable_plans);
                return Ok(merged.map_or(Transformed::no(node), Transformed::yes));
            };
            let rewritten = match fetch {
                _ if options.prefer_resumable_plans => true,
                Some(rows) => !keeps(rows, input.as_ref()) && (spills || is_large(input, limit)),
                None => is_large(input, limit),
            };
            if !rewritten {
                return Ok(Transformed::no(node));
            }
            if uses_ours(input) && can_sort(order, &input.schema()) {
                let gather = exchanged(&node, Arc::clone(input), order, threads);
                let gather = gather.with_fetch(fetch).unwrap_or_else(|| gather.into_plan());
                return Ok(Transformed::yes(gather));
            }
            let Some(rows) = fetch else { return Ok(Transformed::no(node)) };
            let partitions = input.output_partitioning().partition_count();
            let sort = SortExec::new(order.clone(), Arc::clone(input)).with_preserve_partitioning(partitions > 1);
            let merge = SortPreservingMergeExec::new(order.clone(), Arc::new(sort));
            Ok(Transformed::yes(Arc::new(GlobalLimitExec::new(Arc::new(merge), 0, Some(rows))) as _))
        };
        plan.transform_down(rewrite).data()
    }

    fn name(&self) -> &str {
        "exchange_sorts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The rows of `node`, which are those of `input`, sorted by an exchange.
fn exchanged(
    node: &Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    order: &LexOrdering,
    threads: usize,
) -> GatherExec {
    let scheme = RangeScheme { order: order.clone(), boundaries: None };
    let exchange = ExchangeExec::new(input, scheme, threads).into_plan();
    GatherExec::sorted(exchange, node.equivalence_properties().clone())
}

/// A merge of sorts that DataFusion has pushed below projections and unions, as a sort of what they sort. Which rows
/// of equal keys such a merge gives first depends on how many partitions there are.
fn merged_anew(node: &Arc<dyn ExecutionPlan>, threads: usize) -> Option<Arc<dyn ExecutionPlan>> {
    let merge = node.downcast_ref::<SortPreservingMergeExec>().filter(|merge| merge.fetch().is_none())?;
    let input = without_sorts(merge.input())?;
    let sorts = uses_ours(&input) && can_sort(merge.expr(), &input.schema());
    sorts.then(|| exchanged(node, input, merge.expr(), threads).into_plan())
}

/// The plan without the sorts below its projections and unions, if there are any.
fn without_sorts(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        return sort.fetch().is_none().then(|| Arc::clone(sort.input()));
    }
    if !plan.is::<ProjectionExec>() && !plan.is::<UnionExec>() {
        return None;
    }
    let children = plan.children();
    let stripped: Vec<_> = children.iter().map(|child| without_sorts(child)).collect();
    if stripped.iter().all(Option::is_none) {
        return None;
    }
    let children = stripped.into_iter().zip(children).map(|(stripped, child)| stripped.unwrap_or(Arc::clone(child)));
    replace_children_if_necessary(Arc::clone(plan), children.collect()).ok()
}

/// What is sorted as a whole, by what, and how many of the first rows are wanted.
struct Sorted<'a> {
    input: &'a Arc<dyn ExecutionPlan>,
    order: &'a LexOrdering,
    fetch: Option<usize>,
}

fn sorted(node: &Arc<dyn ExecutionPlan>) -> Option<Sorted<'_>> {
    let (sort, one) = match node.downcast_ref::<SortPreservingMergeExec>() {
        Some(merge) => {
            let sort = merge.input().downcast_ref::<SortExec>();
            (sort.filter(|sort| merge.fetch() == sort.fetch() && sort.expr() == merge.expr())?, true)
        }
        None => {
            let sort = node.downcast_ref::<SortExec>()?;
            (sort, node.output_partitioning().partition_count() == 1)
        }
    };
    let input = match sort.input().downcast_ref::<CoalescePartitionsExec>() {
        Some(coalesce) if coalesce.fetch().is_none() => coalesce.input(),
        _ => sort.input(),
    };
    one.then_some(Sorted { input, order: sort.expr(), fetch: sort.fetch() })
}

/// Whether rows are not known to be few.
fn is_large(input: &Arc<dyn ExecutionPlan>, limit: usize) -> bool {
    let rows = StatisticsContext::new()
        .compute(input.as_ref(), &StatisticsArgs::new())
        .ok()
        .and_then(|statistics| statistics.num_rows.get_value().copied());
    let small = SMALL.min(limit / SMALL_PART);
    rows.is_none_or(|rows| rows.saturating_mul(row_bytes(input.as_ref())) > small)
}
