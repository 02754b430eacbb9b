//! A hash join as a sort-merge join, for buckets that cannot be cut any smaller: it spills even the rows of one key.
//!
//! Not all joins can be: null-aware anti joins, and keys without an order that both agree on (nested types,
//! floating-point numbers, dictionaries).

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

/// Whether a sort-merge join gives the same rows.
pub(super) fn can_merge(join: &HashJoinExec) -> bool {
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

/// DataFusion 55's sort-merge join with a condition beside the keys pads rows that have no match with nulls before it
/// makes their columns nullable.
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

/// The same join, of inputs with one partition each.
pub(super) fn sort_merge(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let sorted = |input: &Arc<dyn ExecutionPlan>, keys: Vec<Arc<dyn PhysicalExpr>>| -> Arc<dyn ExecutionPlan> {
        match LexOrdering::new(keys.into_iter().map(PhysicalSortExpr::new_default)) {
            Some(order) => Arc::new(SortExec::new(order, Arc::clone(input))),
            None => Arc::clone(input),
        }
    };
    let (left, right) = join.on().iter().cloned().unzip();
    let merge = Arc::new(SortMergeJoinExec::try_new(
        sorted(join.left(), left),
        sorted(join.right(), right),
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
