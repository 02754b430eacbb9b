//! Functions of ours in place of those of DataFusion that give other values than they should.
//!
//! - `array_agg` and `string_agg` over a window give their list backwards where that saves a sort for another window,
//!   and with DISTINCT and ORDER BY in the order of another aggregate: see [`aggregates`].
//! - `sum` and `avg` of floating-point numbers over frames that move keep what has left them: see [`frame_sum`].
//! - `min` and `max` of floating-point numbers by group lose infinities and NaN: see [`float_bounds`].
//! - `lag` and `lead` with IGNORE NULLS, of a row further away than the next, lose count: see [`shifts`].
//!
//! They have the names of those that they stand for, so that columns and plans are called as before.

mod aggregates;
mod float_bounds;
mod frame_sum;
mod shifts;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFunctionDefinition};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use self::float_bounds::has_float_bounds;

#[derive(Debug)]
pub(super) struct StandInFunctions;

impl OptimizerRule for StandInFunctions {
    fn name(&self) -> &str {
        "stand_in_functions"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(|plan| {
            if !matches!(plan, LogicalPlan::Aggregate(_) | LogicalPlan::Window(_)) {
                return Ok(Transformed::no(plan));
            }
            // What rows are grouped of, if they are.
            let grouped = match &plan {
                LogicalPlan::Aggregate(aggregate) if !aggregate.group_expr.is_empty() => {
                    Some(Arc::clone(aggregate.input.schema()))
                }
                _ => None,
            };
            plan.map_expressions(|expr| expr.transform_up(|expr| Ok(stand_in(expr, grouped.as_deref()))))
        })
    }
}

fn stand_in(expr: Expr, grouped: Option<&DFSchema>) -> Transformed<Expr> {
    match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let sorts_itself = params.distinct && !params.order_by.is_empty();
            let is_float = |value: &Expr, rows| value.get_type(rows).is_ok_and(|kind| has_float_bounds(&kind));
            let is_of_floats = grouped.is_some_and(|rows| params.args.iter().all(|value| is_float(value, rows)));
            let in_own_order = aggregates::in_own_order(&func).filter(|_| sorts_itself);
            match in_own_order.or_else(|| aggregates::of_floats(&func).filter(|_| is_of_floats)) {
                Some(func) => Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params })),
                None => Transformed::no(Expr::AggregateFunction(AggregateFunction { func, params })),
            }
        }
        Expr::WindowFunction(mut call) => match of_window(&call) {
            Some(fun) => {
                call.fun = fun;
                Transformed::yes(Expr::WindowFunction(call))
            }
            None => Transformed::no(Expr::WindowFunction(call)),
        },
        expr => Transformed::no(expr),
    }
}

fn of_window(call: &WindowFunction) -> Option<WindowFunctionDefinition> {
    let moves = !call.params.window_frame.start_bound.is_unbounded();
    match &call.fun {
        WindowFunctionDefinition::AggregateUDF(function) => aggregates::in_own_order(function)
            .or_else(|| aggregates::of_frames(function).filter(|_| moves && !call.params.distinct))
            .map(WindowFunctionDefinition::AggregateUDF),
        WindowFunctionDefinition::WindowUDF(function) => {
            shifts::over_partitions(function, &call.params).map(WindowFunctionDefinition::WindowUDF)
        }
    }
}
