//! The value of a subquery that may have no rows is null then, whatever its columns are.
//!
//! DataFusion takes it for a value of the column, and where that has no nulls answers `(SELECT ..) IS NULL` by itself.
//!
//! ```text
//! (SELECT id FROM t WHERE id > 7)      (SELECT id FROM (one row) LEFT JOIN (SELECT id FROM t WHERE id > 7) ON true)
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::{
    Aggregate, EmptyRelation, Expr, Extension, JoinType, LogicalPlan, LogicalPlanBuilder, Projection, Subquery,
    SubqueryAlias, lit,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::logical::{SharedNode, has_node, has_part};

#[derive(Debug)]
pub(super) struct NullableSubqueries;

impl OptimizerRule for NullableSubqueries {
    fn name(&self) -> &str {
        "nullable_subqueries"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let is_value = |part: &Expr| matches!(part, Expr::ScalarSubquery(_));
        if !has_node(&plan, |node| has_part(node, is_value)) {
            return Ok(Transformed::no(plan));
        }
        let plan = plan.transform_up_with_subqueries(|plan| {
            plan.map_expressions(|expr| {
                expr.transform_up(|expr| match expr {
                    Expr::ScalarSubquery(subquery) if may_be_null_unsaid(&subquery) => {
                        Ok(Transformed::yes(Expr::ScalarSubquery(nullable(&subquery)?)))
                    }
                    expr => Ok(Transformed::no(expr)),
                })
            })
        })?;
        match plan.transformed {
            true => plan.data.transform_up_with_subqueries(|plan| Ok(Transformed::yes(plan.recompute_schema()?))),
            false => Ok(plan),
        }
    }
}

/// Whether the value may be null though the column has no nulls. Of those that depend on columns outside the value is
/// one of a join.
fn may_be_null_unsaid(subquery: &Subquery) -> bool {
    let plan = &subquery.subquery;
    subquery.outer_ref_columns.is_empty() && !plan.schema().field(0).is_nullable() && !has_one_row(plan)
}

/// Whether a plan has one row, always.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(Projection { input, .. }) | LogicalPlan::SubqueryAlias(SubqueryAlias { input, .. }) => {
            has_one_row(input)
        }
        LogicalPlan::Aggregate(Aggregate { group_expr, .. }) => group_expr.is_empty(),
        LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row, .. }) => *produce_one_row,
        LogicalPlan::Extension(Extension { node }) => {
            node.as_any().downcast_ref::<SharedNode>().is_some_and(|shared| has_one_row(shared.input()))
        }
        _ => false,
    }
}

fn nullable(subquery: &Subquery) -> Result<Subquery> {
    let plan = LogicalPlan::clone(&subquery.subquery);
    let plan = LogicalPlanBuilder::empty(true).join_on(plan, JoinType::Left, [lit(true)])?.build()?;
    Ok(Subquery { subquery: Arc::new(plan), ..subquery.clone() })
}
