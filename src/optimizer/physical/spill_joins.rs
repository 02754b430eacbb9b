//! Joins that are not expected to fit in memory are planned as sort-merge joins, which spill; a hash join would fail.
//!
//! A hash join stays when twice what its build side is estimated to take is within an equal share of the memory of all hash
//! joins of the plan. Should an estimate be wrong, the query is planned again with `prefer_spilling_joins`.
//!
//! ```text
//! HashJoinExec: on=[(a, b)]          SortMergeJoinExec: on=[(a, b)]
//!   ReadExec (large)           ->      ReadExec          EnsureRequirements then adds the sorts and repartitions
//!   ReadExec (larger)                  ReadExec
//! ```
//!
//! Joins that a sort-merge join cannot do stay: null-aware anti joins, and keys without an order that both agree on
//! (nested types, floating-point numbers, dictionaries).

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use crate::config::BlockyardOptions;
use crate::physical::schema_bytes;

/// Bytes that a hash table takes for each row, beside the row.
const HASH_ENTRY_BYTES: usize = 24;
/// Estimates may be wrong by this factor.
const SAFETY: usize = 2;

#[derive(Debug)]
pub(super) struct SpillJoins;

impl PhysicalOptimizerRule for SpillJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(config);
        let joins = hash_joins(&plan);
        if joins == 0 {
            return Ok(plan);
        }
        let share = match options.prefer_spilling_joins {
            true => 0,
            false => options.memory_limit.bytes() / joins,
        };
        let rewrite = |node: Arc<dyn ExecutionPlan>| match node.downcast_ref::<HashJoinExec>() {
            Some(join) if can_merge(join) && !fits(join, share) => Ok(Transformed::yes(sort_merge(join)?)),
            _ => Ok(Transformed::no(node)),
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "spill_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn hash_joins(plan: &Arc<dyn ExecutionPlan>) -> usize {
    usize::from(plan.is::<HashJoinExec>()) + plan.children().into_iter().map(hash_joins).sum::<usize>()
}

/// Whether the build side is expected to stay within `share` bytes. A side of unknown size is.
fn fits(join: &HashJoinExec, share: usize) -> bool {
    let build = join.left();
    let rows = StatisticsContext::new()
        .compute(build.as_ref(), &StatisticsArgs::new())
        .ok()
        .and_then(|statistics| statistics.num_rows.get_value().copied());
    match rows {
        Some(rows) => {
            let bytes = rows.saturating_mul(schema_bytes(&build.schema()) + HASH_ENTRY_BYTES);
            bytes.saturating_mul(SAFETY) <= share
        }
        None => share > 0,
    }
}

fn can_merge(join: &HashJoinExec) -> bool {
    let ordered = |schema: &SchemaRef, key: &Arc<dyn PhysicalExpr>| {
        key.data_type(schema).is_ok_and(|t| {
            let unordered = match t {
                DataType::Dictionary(..)
                | DataType::RunEndEncoded(..)
                | DataType::Interval(_)
                | DataType::Decimal256(..) => true,
                DataType::Timestamp(_, zone) => zone.is_some(),
                _ => t.is_nested() || t.is_floating(),
            };
            !unordered
        })
    };
    let (left, right) = (join.left().schema(), join.right().schema());
    let keys = join.on().iter().all(|(l, r)| ordered(&left, l) && ordered(&right, r));
    keys && !join.null_aware && can_pad(join)
}

/// DataFusion 55's sort-merge join with a condition beside the keys pads rows that have no match with nulls before it makes
/// their columns nullable.
fn can_pad(join: &HashJoinExec) -> bool {
    let nullable = |input: &Arc<dyn ExecutionPlan>| input.schema().fields().iter().all(|field| field.is_nullable());
    join.filter().is_none()
        || match join.join_type() {
            JoinType::Left => nullable(join.right()),
            JoinType::Right => nullable(join.left()),
            JoinType::Full => nullable(join.left()) && nullable(join.right()),
            _ => true,
        }
}

/// The same condition over columns of which those of the left side come first: a sort-merge join takes them for that,
/// whatever the indices say, and a hash join whose sides were swapped has them the other way round.
fn left_first(filter: &JoinFilter) -> Result<JoinFilter> {
    let mut order: Vec<usize> = (0..filter.column_indices().len()).collect();
    order.sort_by_key(|&at| filter.column_indices()[at].side != JoinSide::Left);
    let indices = order.iter().map(|&at| filter.column_indices()[at].clone()).collect();
    let expression = Arc::clone(filter.expression()).transform(|expression| {
        let moved = expression.downcast_ref::<Column>().and_then(|column| {
            let at = order.iter().position(|&at| at == column.index())?;
            Some(Arc::new(Column::new(column.name(), at)) as Arc<dyn PhysicalExpr>)
        });
        Ok(moved.map_or_else(|| Transformed::no(expression), Transformed::yes))
    });
    let schema = filter.schema().project(&order)?;
    Ok(JoinFilter::new(expression.data()?, indices, Arc::new(schema)))
}

fn sort_merge(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let merge = Arc::new(SortMergeJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        join.on().to_vec(),
        join.filter().map(left_first).transpose()?,
        *join.join_type(),
        vec![SortOptions::default(); join.on().len()],
        join.null_equality(),
    )?);
    let Some(columns) = &join.projection else {
        return Ok(merge);
    };
    let schema = merge.schema();
    let expression = |index: &usize| {
        let name = schema.field(*index).name();
        ProjectionExpr { expr: Arc::new(Column::new(name, *index)), alias: name.clone() }
    };
    Ok(Arc::new(ProjectionExec::try_new(columns.iter().map(expression).collect::<Vec<_>>(), merge)?))
}
