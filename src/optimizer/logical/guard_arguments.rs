//! What an aggregate with a FILTER takes is evaluated of the rows that pass it, where it may be an error of others.
//!
//! DataFusion evaluates it of all rows, or computes it below for all of them where several aggregates take it.
//!
//! ```text
//! sum(10 / x) FILTER (WHERE x <> 0)       sum(CASE WHEN x <> 0 THEN 10 / x END) FILTER (WHERE x <> 0)
//! ```

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Case, Expr, LogicalPlan, when};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::logical::{has_part, is_guard, is_of_some, may_exceed, may_fail};

#[derive(Debug)]
pub(super) struct GuardArguments;

impl OptimizerRule for GuardArguments {
    fn name(&self) -> &str {
        "guard_arguments"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let schema = match &plan {
            LogicalPlan::Aggregate(aggregate) => Arc::clone(aggregate.input.schema()),
            LogicalPlan::Window(window) => Arc::clone(window.input.schema()),
            _ => return Ok(Transformed::no(plan)),
        };
        if !has_part(&plan, |part| filter_of(part).is_some()) {
            return Ok(Transformed::no(plan));
        }
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let guarded = expr.transform_up(|expr| guarded(expr, &schema))?;
            Ok(guarded.update_data(|expr| name.restore(expr)))
        })
    }
}

fn filter_of(call: &Expr) -> Option<&Expr> {
    match call {
        Expr::AggregateFunction(call) => call.params.filter.as_deref(),
        Expr::WindowFunction(call) => call.params.filter.as_deref(),
        _ => None,
    }
}

fn guarded(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Some(filter) = filter_of(&expr).filter(|filter| is_guard(filter, schema)).cloned() else {
        return Ok(Transformed::no(expr));
    };
    let taken: Vec<&mut Expr> = match &mut expr {
        Expr::AggregateFunction(AggregateFunction { params, .. }) => {
            params.args.iter_mut().chain(params.order_by.iter_mut().map(|key| &mut key.expr)).collect()
        }
        // The order of a window is that of others beside it.
        Expr::WindowFunction(call) => {
            let WindowFunction { params, .. } = call.as_mut();
            params.args.iter_mut().collect()
        }
        _ => Vec::new(),
    };
    let mut has_changed = false;
    for value in taken {
        let may_be_error = may_fail(value, schema) || may_exceed(value, schema);
        if may_be_error && is_of_some(value) && !is_guarded(value, &filter) {
            *value = when(filter.clone(), std::mem::take(value)).end()?;
            has_changed = true;
        }
    }
    Ok(Transformed::new_transformed(expr, has_changed))
}

/// Whether a value is evaluated of rows alone that pass a filter.
fn is_guarded(value: &Expr, filter: &Expr) -> bool {
    match value {
        Expr::Cast(cast) => is_guarded(&cast.expr, filter),
        Expr::Case(Case { expr: None, when_then_expr, else_expr: None }) => {
            matches!(when_then_expr.as_slice(), [(condition, _)] if condition.as_ref() == filter)
        }
        _ => false,
    }
}
