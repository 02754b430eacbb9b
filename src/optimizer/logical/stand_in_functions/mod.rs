//! Functions of ours in place of those of DataFusion that give other values than they should.
//!
//! - `array_agg` and `string_agg` over a window give their list backwards where that saves a sort for another window,
//!   and with DISTINCT and ORDER BY in the order of another aggregate: see [`aggregates`].
//! - `sum` and `avg` of floating-point numbers over frames that move keep what has left them: see [`frame_sum`].
//! - `lag` and `lead` with IGNORE NULLS, of a row further away than the next, lose count: see [`shifts`].
//!
//! They have the names of those that they stand for, so that columns and plans are called as before.

mod aggregates;
mod frame_sum;
mod shifts;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

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
            plan.map_expressions(|expr| expr.transform_up(|expr| Ok(stand_in(expr))))
        })
    }
}

fn stand_in(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let sorts_itself = params.distinct && !params.order_by.is_empty();
            match aggregates::in_own_order(&func).filter(|_| sorts_itself) {
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
