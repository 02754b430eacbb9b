//! Makes what is random depend on data and seed alone. Shuffles and samples tell rows apart by their task and their
//! number in it, spreads and block orders by the tasks that blocks are of. Where tasks follow from the data, as those
//! of a read do, nothing is to be done. Where they are blocks of a queue or buckets of a sort, which are cut as memory
//! allows, rows are counted first: they are cut anew, by their number in the dataset.
//!
//! ```text
//! ExchangeExec: scheme=random(seed=1)             ExchangeExec: scheme=random(seed=1)
//!   QueueExec                                ->     ExchangeExec: scheme=sized(rows=131072, strict=true)
//!     MapExec: MapBatches(f), concurrency=3           QueueExec
//!                                                       MapExec: MapBatches(f), concurrency=3
//! ```
//!
//! The tasks of a read in random order need no exchange: they are read in that order.
//!
//! ```text
//! ExchangeExec: scheme=block_order(seed=1)        MapExec: ReadParquet->MapBatches(f)
//!   MapExec: ReadParquet->MapBatches(f)      ->     ReadExec: ReadParquet, tasks=4, block_order(seed=1)
//!     ReadExec: ReadParquet, tasks=4
//! ```
//!
//! Correct because cutting anew keeps rows and their order, and steps of a stage work on whatever tasks there are. It
//! comes after the rules that decide where queues are.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};

use crate::physical::{
    BlockOrderScheme, BlockSize, ExchangeExec, IntoPlan, MapExec, PlanExt, QueueExec, RandomScheme, ReadExec,
    SizeScheme, SpreadScheme, has_steady_tasks, is_one_task, is_ordered, steady_parts, ungathered,
};

/// Rows of a task whose rows are counted: enough to be worth a task, few enough for each thread to have some.
const TASK_ROWS: usize = 1 << 17;
/// Rows of a block where blocks are to come in random order, but all rows are one task.
const BLOCK_ROWS: usize = 1 << 13;

#[derive(Debug)]
pub(super) struct SteadyRows;

impl PhysicalOptimizerRule for SteadyRows {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| match rewrite(&node).transpose()? {
            Some(rewritten) => Ok(Transformed::yes(rewritten)),
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "steady_rows"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn rewrite(node: &Arc<dyn ExecutionPlan>) -> Option<Result<Arc<dyn ExecutionPlan>>> {
    let exchange = node.operator::<ExchangeExec>();
    let scheme = exchange.map(ExchangeExec::scheme);
    let block_order = scheme.and_then(|scheme| scheme.downcast_ref::<BlockOrderScheme>());
    if let Some(BlockOrderScheme { seed, window: None }) = block_order
        && let Some(read) = read_in_random_order(exchange?.input(), *seed)
    {
        return Some(read);
    }
    let samples = node.operator::<MapExec>().is_some_and(|map| !draws_nothing(map));
    let input = node.children().into_iter().next().filter(|_| exchange.is_some() || samples)?;
    let is_random = scheme.is_none_or(|scheme| scheme.downcast_ref::<RandomScheme>().is_some());
    let is_spread = scheme.is_some_and(|scheme| scheme.downcast_ref::<SpreadScheme>().is_some());
    let (steady, rows) = match block_order {
        _ if is_random => (has_steady_tasks(input), TASK_ROWS),
        _ if is_spread => (steady_parts(ungathered(input)).is_some(), TASK_ROWS),
        // A user who says how large blocks are wants these in random order.
        Some(_)
            if input
                .operator::<ExchangeExec>()
                .is_some_and(|exchange| exchange.scheme().size_of_blocks().is_some()) =>
        {
            (true, 0)
        }
        // Of one task there is one order: then it is of blocks of a few rows.
        Some(_) => (steady_parts(ungathered(input)).is_some() && !is_one_task(ungathered(input)), BLOCK_ROWS),
        None => (true, 0),
    };
    // What has no order has no numbers of rows either.
    if steady || !is_ordered(input.as_ref()) {
        return None;
    }
    let input = counted(input, rows);
    Some(Ok(match exchange {
        Some(exchange) => {
            let above = exchange.over(input);
            if exchange.is_fused() { above.fused() } else { above }.into_plan()
        }
        None => above(node.operator::<MapExec>()?, input),
    }))
}

/// Whether no step draws rows by where they stand.
fn draws_nothing(map: &MapExec) -> bool {
    map.steps().iter().all(|step| !step.is_random())
}

/// The same rows in tasks of so many rows, as they are below the maps that belong to the stage.
fn counted(plan: &Arc<dyn ExecutionPlan>, rows: usize) -> Arc<dyn ExecutionPlan> {
    if let Some(map) = plan.operator::<MapExec>() {
        return above(map, counted(map.input(), rows));
    }
    let scheme = SizeScheme(BlockSize::Rows { rows, strict: true });
    ExchangeExec::new(Arc::clone(plan), scheme, plan.output_partitioning().partition_count()).into_plan()
}

/// A map above what was cut anew: it is what is cut that asks for the order of the rows, and keeps it without saying
/// so.
fn above(map: &MapExec, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    MapExec::new(input, map.steps().to_vec(), map.compute().clone()).into_plan()
}

/// The plan with the tasks of its read in random order, if its tasks are those of a read. A sample below keeps which
/// rows it has: these follow from the numbers of the tasks.
fn read_in_random_order(plan: &Arc<dyn ExecutionPlan>, seed: u64) -> Option<Result<Arc<dyn ExecutionPlan>>> {
    if let Some(read) = plan.operator::<ReadExec>() {
        return Some(Ok(read.in_random_order(seed).into_plan()));
    }
    let input = plan
        .children()
        .into_iter()
        .next()
        .filter(|_| plan.operator::<MapExec>().is_some_and(draws_nothing) || plan.is_operator::<QueueExec>())?;
    let input = read_in_random_order(input, seed)?;
    Some(input.and_then(|input| replace_children_if_necessary(Arc::clone(plan), vec![input])))
}
