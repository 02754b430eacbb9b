//! Gives a column another name where a projection computes it from one of the same name, below another projection.
//!
//! DataFusion's `optimize_projections` drops the upper of two projections that read the same, which is wrong when what
//! they read differs: of two layers of `a + 2 AS a` one was lost. With names of their own the layers read differently,
//! and are merged as they should be.
//!
//! ```text
//! Projection: a + 2 AS a        Projection: a_1 + 2 AS a
//!   Projection: a + 2 AS a  ->    Projection: a + 2 AS a_1
//!     Scan                          Scan
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Subquery};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

#[derive(Debug)]
pub(super) struct RenameShadowed;

impl OptimizerRule for RenameShadowed {
    fn name(&self) -> &str {
        "rename_shadowed"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Projection(upper) = &plan else { return Ok(Transformed::no(plan)) };
        let LogicalPlan::Projection(lower) = upper.input.as_ref() else { return Ok(Transformed::no(plan)) };
        let names = other_names(lower);
        if names.is_empty() || upper.expr.iter().any(has_outer_references) {
            return Ok(Transformed::no(plan));
        }
        let outputs = lower.schema.columns();
        let lower_expr = lower.expr.iter().zip(&outputs).map(|(expr, output)| match names.get(output) {
            Some(name) => with_name(expr.clone(), name),
            None => expr.clone(),
        });
        let lower = Projection::try_new(lower_expr.collect(), Arc::clone(&lower.input))?;
        let preserver = NamePreserver::new_for_projection();
        let upper_expr = upper.expr.iter().map(|expr| {
            let name = preserver.save(expr);
            Ok(name.restore(expr.clone().transform(|e| Ok(renamed(e, &names)))?.data))
        });
        let upper_expr = upper_expr.collect::<Result<Vec<_>>>()?;
        let upper = Projection::try_new(upper_expr, Arc::new(LogicalPlan::Projection(lower)))?;
        Ok(Transformed::yes(LogicalPlan::Projection(upper)))
    }
}

/// Another name for each column that the projection both computes and reads.
fn other_names(projection: &Projection) -> HashMap<Column, Column> {
    let reads: HashSet<&Column> = projection.expr.iter().flat_map(|e| e.column_refs()).collect();
    let outputs = projection.schema.columns();
    let mut taken: HashSet<String> = reads.iter().copied().chain(&outputs).map(|c| c.name.clone()).collect();
    let mut names = HashMap::new();
    for (expr, output) in projection.expr.iter().zip(outputs) {
        let passes = matches!(expr.clone().unalias(), Expr::Column(read) if read == output);
        if !passes && reads.contains(&output) {
            let mut number = 1;
            while !taken.insert(format!("{}_{number}", output.name)) {
                number += 1;
            }
            let other = Column::from_name(format!("{}_{number}", output.name));
            names.insert(output, other);
        }
    }
    names
}

fn with_name(expr: Expr, name: &Column) -> Expr {
    match expr {
        Expr::Alias(alias) => Expr::Alias(Alias { relation: None, name: name.name.clone(), ..alias }),
        expr => expr.alias(&name.name),
    }
}

fn renamed(expr: Expr, names: &HashMap<Column, Column>) -> Transformed<Expr> {
    match &expr {
        Expr::Column(column) if names.contains_key(column) => Transformed::yes(Expr::Column(names[column].clone())),
        _ => Transformed::no(expr),
    }
}

/// Whether a subquery reads columns from outside of it, where they cannot be renamed.
fn has_outer_references(expr: &Expr) -> bool {
    let outer = |s: &Subquery| !s.outer_ref_columns.is_empty();
    let found = expr.exists(|e| {
        Ok(match e {
            Expr::ScalarSubquery(subquery) => outer(subquery),
            Expr::Exists(e) => outer(&e.subquery),
            Expr::InSubquery(e) => outer(&e.subquery),
            _ => false,
        })
    });
    found.unwrap_or(true)
}
