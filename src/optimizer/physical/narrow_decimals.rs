//! Arithmetic of decimals in 64 bits, in projections and in the arguments of aggregates.
//!
//! The values of each batch decide, so results stay as they are, and so do the texts of plans. See
//! [`narrow_decimals`]. Off with `optimize_narrow_decimals`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use crate::config::BlockyardOptions;
use crate::physical::narrow_decimals;

#[derive(Debug)]
pub(super) struct NarrowDecimals;

impl PhysicalOptimizerRule for NarrowDecimals {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !BlockyardOptions::from_config(config).optimize_narrow_decimals {
            return Ok(plan);
        }
        let rewrite = |node: Arc<dyn ExecutionPlan>| {
            if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
                return of_projection(projection).map(|new| new.map_or(Transformed::no(node), Transformed::yes));
            }
            if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
                return of_aggregate(aggregate).map(|new| new.map_or(Transformed::no(node), Transformed::yes));
            }
            Ok(Transformed::no(node))
        };
        plan.transform_up(rewrite).data()
    }

    fn name(&self) -> &str {
        "narrow_decimals"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Another projection, if any of its expressions has such arithmetic.
fn of_projection(projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = projection.input().schema();
    let mut is_other = false;
    let mut narrowed = |column: &ProjectionExpr| -> Result<ProjectionExpr> {
        let expr = narrow_decimals(Arc::clone(&column.expr), &schema)?;
        is_other |= !Arc::ptr_eq(&expr, &column.expr);
        Ok(ProjectionExpr { expr, alias: column.alias.clone() })
    };
    let columns: Vec<ProjectionExpr> = projection.expr().iter().map(&mut narrowed).collect::<Result<_>>()?;
    if !is_other {
        return Ok(None);
    }
    Ok(Some(Arc::new(ProjectionExec::try_new(columns, Arc::clone(projection.input()))?)))
}

/// Another aggregate, if any of its arguments has such arithmetic.
fn of_aggregate(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = aggregate.input_schema();
    let mut is_other = false;
    let mut functions = aggregate.aggr_expr().to_vec();
    // What depends on an order may have been turned around, which would be forgotten.
    for function in functions.iter_mut().filter(|function| function.order_bys().is_empty()) {
        let given = function.expressions();
        let narrowed = given.iter().map(|arg| narrow_decimals(Arc::clone(arg), &schema));
        let narrowed: Vec<Arc<dyn PhysicalExpr>> = narrowed.collect::<Result<_>>()?;
        if given.iter().zip(&narrowed).all(|(given, narrowed)| Arc::ptr_eq(given, narrowed)) {
            continue;
        }
        if let Some(anew) = function.with_new_expressions(narrowed, Vec::new()) {
            (*function, is_other) = (Arc::new(anew), true);
        }
    }
    Ok(is_other.then(|| Arc::new(aggregate.with_new_aggr_exprs(functions)) as _))
}
