//! Compares intervals by how long they are.
//!
//! DataFusion compares their months, then their days, then their nanoseconds, and casts what lies between two points of
//! time to an interval without days: no gap is longer than a day. Here a month has 30 days and a day 24 hours, as in
//! PostgreSQL, where intervals are compared and sorted.
//!
//! ```text
//! CAST(ts - before AS Interval) > INTERVAL '1 day'
//!   now:     interval_length(CAST(ts - before AS Interval)) > 86400000000000
//! ```

use datafusion::arrow::datatypes::{DataType, Fields};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Sort, SortExpr};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::functions::interval_length;
use crate::logical::{columns_within, compares, has_node, has_part};

#[derive(Debug)]
pub(super) struct ExactIntervals;

impl OptimizerRule for ExactIntervals {
    fn name(&self) -> &str {
        "exact_intervals"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !has_node(&plan, may_have_intervals) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| {
            if !may_have_intervals(&plan) {
                return Ok(Transformed::no(plan));
            }
            let schema = columns_within(&plan)?;
            if let LogicalPlan::Sort(sort) = plan {
                return Ok(sorted(sort, &schema));
            }
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let exact = expr.transform_up(|expr| Ok(compared(expr, &schema)))?;
                Ok(exact.update_data(|expr| name.restore(expr)))
            })
        })
    }
}

/// Whether a column of a node, or a value in its expressions, is an interval.
fn may_have_intervals(node: &LogicalPlan) -> bool {
    let is_interval = |kind: &DataType| matches!(kind, DataType::Interval(_));
    let among = |fields: &Fields| fields.iter().any(|field| is_interval(field.data_type()));
    let reads_any = match node {
        LogicalPlan::TableScan(scan) => among(scan.source.schema().fields()),
        node => node.inputs().into_iter().any(|input| among(input.schema().fields())),
    };
    let has = |expr: &Expr| match expr {
        Expr::Literal(value, _) => is_interval(&value.data_type()),
        Expr::Cast(cast) => is_interval(cast.field.data_type()),
        Expr::ScalarSubquery(subquery) => among(subquery.subquery.schema().fields()),
        Expr::ScalarFunction(_) => true,
        _ => false,
    };
    reads_any || has_part(node, has)
}

fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Interval(_)))
}

fn sorted(sort: Sort, schema: &DFSchema) -> Transformed<LogicalPlan> {
    if !sort.expr.iter().any(|key| is_interval(&key.expr, schema)) {
        return Transformed::no(LogicalPlan::Sort(sort));
    }
    let by_length = |key: SortExpr| match is_interval(&key.expr, schema) {
        true => SortExpr { expr: interval_length(key.expr), ..key },
        false => key,
    };
    let expr = sort.expr.into_iter().map(by_length).collect();
    Transformed::yes(LogicalPlan::Sort(Sort { expr, ..sort }))
}

fn compared(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if compares(op) && is_interval(&left, schema) && is_interval(&right, schema) =>
        {
            let (left, right) = (Box::new(interval_length(*left)), Box::new(interval_length(*right)));
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::Between(Between { expr, negated, low, high }) if is_interval(&expr, schema) => {
            let [expr, low, high] = [expr, low, high].map(|bound| Box::new(interval_length(*bound)));
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list, negated }) if is_interval(&expr, schema) => {
            let list = list.into_iter().map(interval_length).collect();
            Transformed::yes(Expr::InList(InList { expr: Box::new(interval_length(*expr)), list, negated }))
        }
        other => Transformed::no(other),
    }
}
