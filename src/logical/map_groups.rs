//! Ray's `map_groups`: rows with equal keys come into one block, sorted by them, and a function gets the rows of each group.
//! Rust: `group_by(keys).map_groups(f, options)`. SQL: `map_groups(t, 'f', keys => ['a'])`.

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::LogicalPlan;

use super::{MapNode, MapOperator, RepartitionNode, Repartitioning, extension};
use crate::functions::{BatchSize, FunctionRef, MapOptions};

/// `function` on all rows of each group.
pub(crate) fn map_groups(
    input: LogicalPlan,
    keys: Vec<String>,
    function: FunctionRef,
    options: &MapOptions,
) -> Result<LogicalPlan> {
    if options.batch_size != BatchSize::AsTheyCome {
        return plan_err!("map_groups takes no batch_size: its batches are the groups");
    }
    let by_keys = Repartitioning::Keys { keys: keys.clone(), num_blocks: None, sort: true };
    let grouped = extension(RepartitionNode::try_new(input, by_keys)?);
    let function = options.clone().apply(function);
    let compute = options.compute(&function)?;
    Ok(extension(MapNode::try_new(grouped, MapOperator::Groups(function, keys), compute, options.failures()?)?))
}
