//! Makes a decimal of the digits that are written.
//!
//! Where a decimal is compared with a literal like `70.21`, DataFusion compares both as decimals with 15 digits behind
//! the point. It gets these from the floating-point number that the literal has become, of which some are others than
//! what is written, so that `price = 70.21` is true of nothing. Here they are the shortest digits that give the number.
//!
//! ```text
//! CAST(price AS Decimal(30, 15)) = CAST(70.21 AS Decimal(30, 15))
//!   before:  = 70.209999999999992
//!   now:     = 70.210000000000000
//! ```
//!
//! Numbers that are computed are cast as they were.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

#[derive(Debug)]
pub(super) struct ExactDecimals;

impl OptimizerRule for ExactDecimals {
    fn name(&self) -> &str {
        "exact_decimals"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(|plan| {
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let exact = expr.transform_up(|expr| {
                    Ok(match exact(&expr) {
                        Some(decimal) => Transformed::yes(Expr::Literal(decimal, None)),
                        None => Transformed::no(expr),
                    })
                })?;
                Ok(exact.update_data(|expr| name.restore(expr)))
            })
        })
    }
}

/// The decimal of a floating-point literal that is cast to one, if it fits.
fn exact(expr: &Expr) -> Option<ScalarValue> {
    let (Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field })) = expr else { return None };
    let to = field.data_type();
    let digits = match expr.as_ref() {
        Expr::Literal(ScalarValue::Float64(Some(number)), _) if number.is_finite() => number.to_string(),
        Expr::Literal(ScalarValue::Float32(Some(number)), _) if number.is_finite() => number.to_string(),
        _ => return None,
    };
    to.is_decimal().then(|| ScalarValue::from(digits).cast_to(to).ok()).flatten()
}
