//! Functions of ours in place of those of DataFusion that give other values than they should.
//!
//! - `array_agg` and `string_agg` over a window give their list backwards where that saves a sort for another window,
//!   and with DISTINCT and ORDER BY in the order of another aggregate: see [`aggregates`].
//! - `sum` of whole numbers and decimals begins anew where it exceeds its type, and `sum` and `avg` of floating-point
//!   numbers over frames that move keep what has left them: see [`exact_sum`].
//! - `min` and `max` of floating-point numbers by group lose infinities and NaN: see [`float_bounds`].
//! - Aggregates of distinct floating-point numbers and partitions of windows tell -0.0 from 0.0: they get the sum of
//!   each and 0.0.
//! - Aggregates in an order that names a key twice fail: they get it once.
//! - `lag` and `lead` with IGNORE NULLS, of a row further away than the next, lose count: see [`shifts`].
//!
//! They have the names of those that they stand for, so that columns and plans are called as before.

mod aggregates;
mod float_bounds;
mod shifts;

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchemaRef, Result};
use datafusion::logical_expr::expr::{AggregateFunction, Sort, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator, WindowFunctionDefinition, lit};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use self::float_bounds::has_float_bounds;
use crate::aggregates::exact_sum;
use crate::logical::{columns_within, has_node};

#[derive(Debug)]
pub(super) struct StandInFunctions;

impl OptimizerRule for StandInFunctions {
    fn name(&self) -> &str {
        "stand_in_functions"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let calls = |node: &LogicalPlan| matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Window(_));
        if !has_node(&plan, calls) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| {
            if !calls(&plan) {
                return Ok(Transformed::no(plan));
            }
            let rows = match &plan {
                LogicalPlan::Aggregate(aggregate) => {
                    Rows { schema: Arc::clone(aggregate.input.schema()), are_grouped: !aggregate.group_expr.is_empty() }
                }
                plan => Rows { schema: Arc::new(columns_within(plan)?), are_grouped: false },
            };
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let expr = expr.transform_up(|expr| Ok(stand_in(expr, &rows)))?;
                Ok(if expr.transformed { expr.update_data(|expr| name.restore(expr)) } else { expr })
            })
        })
    }
}

/// The rows of an aggregate or a window.
struct Rows {
    schema: DFSchemaRef,
    are_grouped: bool,
}

impl Rows {
    fn type_of(&self, value: &Expr) -> Option<DataType> {
        value.get_type(self.schema.as_ref()).ok()
    }
}

fn stand_in(expr: Expr, rows: &Rows) -> Transformed<Expr> {
    match expr {
        Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
            let given = params.order_by.len();
            without_known_keys(&mut params.order_by);
            let has_fewer_keys = params.order_by.len() < given;
            let tells_zeros = params.distinct && params.order_by.is_empty();
            let changes = params.args.iter_mut().map(|arg| tells_zeros && has_one_zero(arg, rows));
            let has_zeros = changes.fold(false, |any, changes| any | changes);
            let sorts_itself = params.distinct && !params.order_by.is_empty();
            let is_float = |value: &Expr, rows: &Rows| rows.type_of(value).is_some_and(|kind| has_float_bounds(&kind));
            let is_of_floats = rows.are_grouped && params.args.iter().all(|value| is_float(value, rows));
            let in_own_order = aggregates::in_own_order(&func).filter(|_| sorts_itself);
            let of_floats = || aggregates::of_floats(&func).filter(|_| is_of_floats);
            match in_own_order.or_else(of_floats).or_else(|| exact_sum(&func)) {
                Some(func) => Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params })),
                None => {
                    let call = Expr::AggregateFunction(AggregateFunction { func, params });
                    Transformed::new_transformed(call, has_zeros || has_fewer_keys)
                }
            }
        }
        Expr::WindowFunction(mut call) => {
            let changes = call.params.partition_by.iter_mut().map(|key| has_one_zero(key, rows));
            let has_zeros = changes.fold(false, |any, changes| any | changes);
            let other = of_window(&call);
            let is_other = has_zeros || other.is_some();
            if let Some(other) = other {
                call.fun = other;
            }
            Transformed::new_transformed(Expr::WindowFunction(call), is_other)
        }
        expr => Transformed::no(expr),
    }
}

/// Drops keys by which rows are sorted already: aggregates take the order that is left for another one.
fn without_known_keys(order: &mut Vec<Sort>) {
    let mut known = Vec::new();
    order.retain(|key| {
        let is_new = !known.contains(&key.expr);
        known.push(key.expr.clone());
        is_new
    });
}

/// Makes 0.0 of -0.0 where a value is looked up by its bits. Says whether it has changed it.
fn has_one_zero(value: &mut Expr, rows: &Rows) -> bool {
    let zero = match rows.type_of(value) {
        Some(DataType::Float64) => lit(0.0_f64),
        Some(DataType::Float32) => lit(0.0_f32),
        _ => return false,
    };
    let has_it = matches!(value, Expr::BinaryExpr(sum) if sum.op == Operator::Plus && *sum.right == zero);
    if has_it || matches!(value, Expr::Literal(..)) {
        return false;
    }
    *value = std::mem::take(value) + zero;
    true
}

fn of_window(call: &WindowFunction) -> Option<WindowFunctionDefinition> {
    let moves = !call.params.window_frame.start_bound.is_unbounded();
    match &call.fun {
        WindowFunctionDefinition::AggregateUDF(function) => aggregates::in_own_order(function)
            .or_else(|| exact_sum(function))
            .or_else(|| aggregates::of_frames(function).filter(|_| moves && !call.params.distinct))
            .map(WindowFunctionDefinition::AggregateUDF),
        WindowFunctionDefinition::WindowUDF(function) => {
            shifts::over_partitions(function, &call.params).map(WindowFunctionDefinition::WindowUDF)
        }
    }
}
