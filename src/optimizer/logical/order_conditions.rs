//! Evaluates the conditions first that cost next to nothing: comparisons of numbers and times.
//!
//! A condition is evaluated of the rows that passed those before it, where they were few, and the decoder of a scan
//! reads the columns of the first condition of all rows. A comparison of texts in front costs as much as all others
//! together:
//!
//! ```text
//! Filter: mode = 'MAIL' AND received > promised AND received >= 1994-01-01
//!   ->  Filter: received >= 1994-01-01 AND received > promised AND mode = 'MAIL'
//! ```
//!
//! Correct because what moves forward cannot fail, whatever the row: it compares columns and constants. What may fail,
//! or costs more, stays behind it in its order, and sees fewer rows than before. Where anything is volatile, nothing
//! moves: a draw belongs to its row. After conditions have been pushed down.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ExprSchema, Result};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, LogicalPlan, Operator};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::config::BlockyardOptions;
use crate::logical::compares;

#[derive(Debug)]
pub(super) struct OrderConditions;

impl OptimizerRule for OrderConditions {
    fn name(&self) -> &str {
        "order_conditions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !BlockyardOptions::from_config(&config.options()).optimize_condition_order {
            return Ok(Transformed::no(plan));
        }
        match plan {
            LogicalPlan::Filter(mut filter) => {
                let schema = filter.input.schema();
                if is_in_order(&split_conjunction(&filter.predicate), schema) {
                    return Ok(Transformed::no(LogicalPlan::Filter(filter)));
                }
                let mut conditions = split_conjunction_owned(std::mem::take(&mut filter.predicate));
                conditions.sort_by_key(|condition| cost(condition, schema));
                filter.predicate = conjunction(conditions).unwrap_or_default();
                Ok(Transformed::yes(LogicalPlan::Filter(filter)))
            }
            LogicalPlan::TableScan(mut scan) if scan.filters.len() > 1 => {
                let schema = DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?;
                if is_in_order(&scan.filters.iter().collect::<Vec<_>>(), &schema) {
                    return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
                }
                scan.filters.sort_by_key(|condition| cost(condition, &schema));
                Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
            }
            other => Ok(Transformed::no(other)),
        }
    }
}

/// Whether nothing has to move, or may.
fn is_in_order(conditions: &[&Expr], schema: &DFSchema) -> bool {
    conditions.is_sorted_by_key(|condition| cost(condition, schema))
        || conditions.iter().any(|condition| condition.is_volatile())
}

/// What a condition costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cost {
    /// A column of fixed width is compared with a constant, or looked at.
    Constant,
    /// Several are compared.
    Columns,
    /// More, or it may fail.
    Other,
}

fn cost(condition: &Expr, schema: &DFSchema) -> Cost {
    let is_fixed = |expr: &Expr| is_column(expr, schema);
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => match (is_fixed(left), is_fixed(right)) {
            (true, true) => Cost::Columns,
            (true, false) if is_constant(right) => Cost::Constant,
            (false, true) if is_constant(left) => Cost::Constant,
            _ => Cost::Other,
        },
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            cost(left, schema).max(cost(right, schema)).max(Cost::Columns)
        }
        Expr::Between(Between { expr, low, high, .. }) if is_fixed(expr) && is_constant(low) && is_constant(high) => {
            Cost::Constant
        }
        Expr::InList(InList { expr, list, .. }) if is_fixed(expr) && list.iter().all(is_constant) => Cost::Columns,
        Expr::IsNull(expr) | Expr::IsNotNull(expr) if matches!(expr.as_ref(), Expr::Column(_)) => Cost::Constant,
        Expr::Not(expr) => cost(expr, schema),
        expr if is_fixed(expr) => Cost::Constant,
        _ => Cost::Other,
    }
}

/// Whether it is a column of fixed width, or one of integers made wider.
fn is_column(expr: &Expr, schema: &DFSchema) -> bool {
    let type_of = |column| schema.data_type(column).ok();
    match expr {
        Expr::Column(column) => type_of(column).is_some_and(|of| of.is_primitive() || *of == DataType::Boolean),
        Expr::Cast(Cast { expr, field }) => match (expr.as_ref(), field.data_type()) {
            (Expr::Column(column), DataType::Int64) => {
                type_of(column).is_some_and(|of| of.is_integer() && *of != DataType::UInt64)
            }
            (Expr::Column(column), DataType::Float64) => type_of(column).is_some_and(DataType::is_integer),
            _ => false,
        },
        _ => false,
    }
}

fn is_constant(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(..))
}
