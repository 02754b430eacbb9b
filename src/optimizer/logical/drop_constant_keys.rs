//! Groups by fewer columns where conditions leave one value of some.
//!
//! Correct because a column that equals a literal in all rows has the same value in each group: what is left of the
//! keys makes the same groups, and at least one key is left. Not for floating-point numbers, of which `0.0 = -0.0`, nor
//! where an outer join pads the column with nulls. Columns that may be null stay so where that is told, as it is in
//! files. It spares the work on the key; and DataFusion, which takes a constant for a column that the rows are sorted
//! by, would give the groups batch by batch, and move all others for each.
//!
//! ```text
//! Aggregate: groupBy=[year, item]          Projection: 2000 AS year, item, sum(v)
//!   Filter: year = 2000               ->     Aggregate: groupBy=[item]
//!                                              Filter: year = 2000
//! ```

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType, Result, ScalarValue};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, BinaryExpr, Expr, LogicalPlan, LogicalPlanBuilder, Operator};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

#[derive(Debug)]
pub(super) struct DropConstantKeys;

impl OptimizerRule for DropConstantKeys {
    fn name(&self) -> &str {
        "drop_constant_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        dropped(plan)
    }
}

fn dropped(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let tells_nulls = matches!(
        plan,
        LogicalPlan::Copy(_) | LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) | LogicalPlan::RecursiveQuery(_)
    );
    let of_input = if tells_nulls { with_nulls } else { dropped };
    let plan = plan.map_subqueries(dropped)?.transform_sibling(|plan| plan.map_children(of_input))?;
    // Nodes keep what they know of the columns of their inputs, which may no longer be null.
    let plan = if plan.transformed { plan.map_data(LogicalPlan::recompute_schema)? } else { plan };
    plan.transform_sibling(without_constant_keys)
}

/// The same with columns that may be null where they were: a literal is not.
fn with_nulls(input: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let given = input.clone();
    let made = dropped(input)?;
    let nullable = |plan: &LogicalPlan| plan.schema().fields().iter().map(|f| f.is_nullable()).collect::<Vec<_>>();
    Ok(if nullable(&given) == nullable(&made.data) { made } else { Transformed::no(given) })
}

fn without_constant_keys(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Aggregate(aggregate) = &plan else { return Ok(Transformed::no(plan)) };
    if aggregate.group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_))) {
        return Ok(Transformed::no(plan));
    }
    let values: Vec<_> = aggregate.group_expr.iter().map(|key| value_of(key, &aggregate.input)).collect();
    let constants = values.iter().flatten().count();
    if constants == 0 || constants == values.len() {
        return Ok(Transformed::no(plan));
    }
    // Two columns of one name, as casts have it, cannot be told apart above.
    Ok(without_constants(aggregate, &values).map_or_else(|_| Transformed::no(plan.clone()), Transformed::yes))
}

/// The aggregate by the keys that have no value, below a projection that gives its columns.
fn without_constants(aggregate: &Aggregate, values: &[Option<ScalarValue>]) -> Result<LogicalPlan> {
    let keys = aggregate.group_expr.iter().zip(values).filter(|(_, value)| value.is_none());
    let keys = keys.map(|(key, _)| key.clone());
    let given = aggregate.schema.iter().enumerate().map(|(place, (table, field))| {
        match values.get(place).and_then(Option::as_ref) {
            Some(value) => Expr::Literal(value.clone(), None).alias_qualified(table.cloned(), field.name()),
            None => Expr::Column(Column::new(table.cloned(), field.name())),
        }
    });
    LogicalPlanBuilder::from(aggregate.input.as_ref().clone())
        .aggregate(keys, aggregate.aggr_expr.clone())?
        .project(given)?
        .build()
}

/// The value that a key has in all rows of a plan.
fn value_of(key: &Expr, plan: &LogicalPlan) -> Option<ScalarValue> {
    let Expr::Column(column) = key else { return None };
    let (_, field) = plan.schema().qualified_field_from_column(column).ok()?;
    let is_exact = !matches!(field.data_type(), DataType::Float16 | DataType::Float32 | DataType::Float64);
    let is_plain = is_exact && !field.data_type().is_nested() && field.metadata().is_empty();
    let value = if is_plain { constant(column, plan) } else { None };
    value.filter(|value| value.data_type() == *field.data_type())
}

/// The literal that a column of a plan equals in all rows.
fn constant(column: &Column, plan: &LogicalPlan) -> Option<ScalarValue> {
    match plan {
        LogicalPlan::Filter(filter) => equal_literal(column, split_conjunction(&filter.predicate).into_iter())
            .or_else(|| constant(column, &filter.input)),
        LogicalPlan::TableScan(scan) => equal_literal(column, scan.filters.iter().flat_map(split_conjunction)),
        LogicalPlan::Projection(projection) => {
            match projection.expr.get(plan.schema().index_of_column(column).ok()?)?.clone().unalias() {
                Expr::Column(below) => constant(&below, &projection.input),
                _ => None,
            }
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let place = plan.schema().index_of_column(column).ok()?;
            constant(&Column::from(alias.input.schema().qualified_field(place)), &alias.input)
        }
        LogicalPlan::Join(join) => {
            let (left, right) = match join.join_type {
                JoinType::Inner => (true, true),
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (true, false),
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => (false, true),
                JoinType::Full => (false, false),
            };
            let of = |side: &LogicalPlan| side.schema().has_column(column).then(|| constant(column, side)).flatten();
            let left = left.then(|| of(&join.left)).flatten();
            left.or_else(|| right.then(|| of(&join.right)).flatten())
        }
        LogicalPlan::Sort(sort) => constant(column, &sort.input),
        LogicalPlan::Limit(limit) => constant(column, &limit.input),
        LogicalPlan::Repartition(repartition) => constant(column, &repartition.input),
        _ => None,
    }
}

/// What a column equals by one of some conditions that hold.
fn equal_literal<'a>(column: &Column, mut conditions: impl Iterator<Item = &'a Expr>) -> Option<ScalarValue> {
    conditions.find_map(|condition| match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => match (left.as_ref(), right.as_ref()) {
            (Expr::Column(named), Expr::Literal(value, _)) | (Expr::Literal(value, _), Expr::Column(named)) => {
                (named == column && !value.is_null()).then(|| value.clone())
            }
            _ => None,
        },
        _ => None,
    })
}
