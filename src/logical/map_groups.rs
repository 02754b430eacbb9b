//! Ray's `map_groups`: rows with equal keys come into one block, sorted by them, and a function gets the rows of each
//! group. A function that takes pieces of groups gets them from a sort instead, which needs memory for no group.
//! Without keys all rows are one group.
//! Rust: `group_by(keys).map_groups(f, options)`. SQL: `map_groups(t, 'f', keys => ['a'])`.

use datafusion::common::{Column, Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};

use super::{MapNode, MapOperator, RepartitionNode, Repartitioning, extension};
use crate::functions::{BatchSize, FunctionRef, MapOptions};

/// `function` on all rows of each group, or on pieces of at most `batch_size` rows.
pub(crate) fn map_groups(
    input: LogicalPlan,
    keys: Vec<String>,
    function: FunctionRef,
    options: &MapOptions,
) -> Result<LogicalPlan> {
    let most_rows = match options.batch_size {
        BatchSize::AsTheyCome => None,
        BatchSize::Rows(rows) => Some(rows),
        BatchSize::WholeBlock => {
            return plan_err!("map_groups takes a batch_size in rows, for a function that takes pieces of groups");
        }
    };
    // Without keys all rows are one group.
    let one_group = Repartitioning::Blocks { num_blocks: 1, shuffle: false };
    let by_keys = Repartitioning::Keys { keys: keys.clone(), num_blocks: None, sort: true };
    let grouped = match most_rows {
        _ if keys.is_empty() => extension(RepartitionNode::try_new(input, one_group)?),
        None => extension(RepartitionNode::try_new(input, by_keys)?),
        Some(_) => sorted(input, &keys)?,
    };
    let function = options.clone().apply(function);
    let compute = options.compute(&function)?;
    Ok(extension(MapNode::try_new(
        grouped,
        MapOperator::Groups(function, keys, most_rows),
        compute,
        options.failures()?,
    )?))
}

fn sorted(input: LogicalPlan, keys: &[String]) -> Result<LogicalPlan> {
    let fields = input.schema().iter().filter(|(_, field)| keys.contains(field.name()));
    let order: Vec<_> = fields.map(|field| Expr::Column(Column::from(field)).sort(true, false)).collect();
    LogicalPlanBuilder::from(input).sort(order)?.build()
}
