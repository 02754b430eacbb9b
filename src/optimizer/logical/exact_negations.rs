//! Keeps minus from being taken for NOT.
//!
//! DataFusion simplifies bits as if `-x` were all bits of `x` turned over: `x & -x` is 0 for it, where it is the lowest
//! bit of `x`, and `-(x & y)` is `-x | -y`. Here it does not see the one in the other.
//!
//! ```text
//! x & -x        x & same(-x)
//! -(x & 3)      -same(x & 3)
//! ```

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::same::same;
use crate::logical::{has_node, has_part};

#[derive(Debug)]
pub(super) struct ExactNegations;

impl OptimizerRule for ExactNegations {
    fn name(&self) -> &str {
        "exact_negations"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let has_minus = |plan: &LogicalPlan| has_part(plan, is_minus);
        if !has_node(&plan, has_minus) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| {
            if !has_minus(&plan) {
                return Ok(Transformed::no(plan));
            }
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let exact = expr.transform_up(|expr| Ok(exact(expr)))?;
                Ok(exact.update_data(|expr| name.restore(expr)))
            })
        })
    }
}

fn exact(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_of_bits(op) && (is_minus(&left) || is_minus(&right)) => {
            let hidden = |side: Box<Expr>| if is_minus(&side) { Box::new(same(*side)) } else { side };
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left: hidden(left), op, right: hidden(right) }))
        }
        Expr::Negative(inner) => match *inner {
            Expr::BinaryExpr(BinaryExpr { op, .. }) if is_of_bits(op) => {
                Transformed::yes(Expr::Negative(Box::new(same(*inner))))
            }
            _ => Transformed::no(Expr::Negative(inner)),
        },
        expr => Transformed::no(expr),
    }
}

fn is_of_bits(op: Operator) -> bool {
    matches!(op, Operator::BitwiseAnd | Operator::BitwiseOr | Operator::BitwiseXor)
}

fn is_minus(expr: &Expr) -> bool {
    matches!(expr, Expr::Negative(_))
}
