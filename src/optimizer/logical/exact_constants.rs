//! Constants that have no room in their type are an error where they are evaluated.
//!
//! DataFusion computes them while it plans, and begins anew at the other end of the type. Here such a one is a function
//! that fails, with what is written in its message; where nothing evaluates it, nothing fails.
//!
//! ```text
//! 9223372036854775807 + 1                         exceeding()
//! CASE WHEN x > 0 THEN 2147483647 * 2 ELSE 0 END  CASE WHEN x > 0 THEN exceeding() ELSE 0 END
//! ```

use std::sync::Arc;

use datafusion::arrow::compute::kernels::numeric::{add, mul, sub};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion, TreeNodeRewriter, TreeNodeVisitor};
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Volatility};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::functions::{exceeding, fits_digits};
use crate::logical::has_node;

#[derive(Debug)]
pub(super) struct ExactConstants;

impl OptimizerRule for ExactConstants {
    fn name(&self) -> &str {
        "exact_constants"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !has_node(&plan, exceeds) {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| {
            if !exceeds(&plan) {
                return Ok(Transformed::no(plan));
            }
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let exact = expr.rewrite(&mut Constants::default())?;
                Ok(exact.update_data(|expr| name.restore(expr)))
            })
        })
    }
}

/// Whether an expression of a node has a constant that has no room in its type. A limit is refused as it is then.
fn exceeds(node: &LogicalPlan) -> bool {
    let mut constants = Constants::default();
    // The visitor does not fail.
    let _ = node.apply_expressions(|expr| expr.visit(&mut constants));
    constants.exceed && !matches!(node, LogicalPlan::Limit(_))
}

/// Computes the constants of expressions, from the inside out.
#[derive(Default)]
struct Constants {
    /// Those of the parts that have been visited and are still to be put together.
    parts: Vec<Part>,
    exceed: bool,
}

/// What is known of a part of an expression.
enum Part {
    Constant(ScalarValue),
    /// One that depends on nothing, but has not been computed.
    Unknown,
    Other,
}

impl Constants {
    /// Puts the parts of an expression together. Says whether it is what has no room.
    fn put_together(&mut self, expr: &Expr) -> Result<bool> {
        let mut count = 0;
        expr.apply_children(|_| {
            count += 1;
            Ok(TreeNodeRecursion::Continue)
        })?;
        let parts = self.parts.split_off(self.parts.len() - count);
        let computed = match is_constant(expr) && !parts.iter().any(|part| matches!(part, Part::Other)) {
            true => computed_of(expr, parts).map_or(Ok(Part::Unknown), |of| of.map(Part::Constant)),
            false => Ok(Part::Other),
        };
        let exceeds = computed.is_err();
        self.exceed |= exceeds;
        self.parts.push(computed.unwrap_or(Part::Other));
        Ok(exceeds)
    }
}

impl<'n> TreeNodeVisitor<'n> for Constants {
    type Node = Expr;

    fn f_up(&mut self, expr: &'n Expr) -> Result<TreeNodeRecursion> {
        self.put_together(expr)?;
        Ok(TreeNodeRecursion::Continue)
    }
}

impl TreeNodeRewriter for Constants {
    type Node = Expr;

    fn f_up(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        if !self.put_together(&expr)? {
            return Ok(Transformed::no(expr));
        }
        let kind = expr.get_type(&DFSchema::empty())?;
        Ok(Transformed::yes(exceeding(expr.human_display().to_string(), kind)))
    }
}

/// Whether an expression depends on its parts alone.
fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(..)
        | Expr::Alias(_)
        | Expr::Cast(_)
        | Expr::TryCast(_)
        | Expr::Negative(_)
        | Expr::Not(_)
        | Expr::BinaryExpr(_)
        | Expr::Between(_)
        | Expr::Case(_) => true,
        Expr::ScalarFunction(call) => call.func.signature().volatility == Volatility::Immutable,
        _ => false,
    }
}

/// What an expression comes to that has such parts, if it is a literal, a cast or arithmetic.
fn computed_of(expr: &Expr, parts: Vec<Part>) -> Option<Result<ScalarValue>> {
    let value = |of: &Expr, part| match part {
        Part::Constant(value) => Some(value),
        _ => evaluated(of),
    };
    let mut parts = parts.into_iter();
    match expr {
        Expr::Literal(value, _) => Some(Ok(value.clone())),
        Expr::Cast(Cast { expr, field }) => value(expr, parts.next()?)?.cast_to(field.data_type()).ok().map(Ok),
        Expr::Negative(of) => {
            let of = value(of, parts.next()?).filter(|of| of.data_type().is_signed_integer())?;
            let zero = ScalarValue::new_zero(&of.data_type()).ok()?;
            Some(computed(Operator::Minus, &zero, &of))
        }
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::Plus | Operator::Minus | Operator::Multiply),
            right,
        }) => {
            let (left, right) = (value(left, parts.next()?)?, value(right, parts.next()?)?);
            are_exact(&left, &right).then(|| computed(*op, &left, &right))
        }
        _ => None,
    }
}

/// The value of an expression that depends on nothing, as DataFusion will find it.
fn evaluated(expr: &Expr) -> Option<ScalarValue> {
    let context = SimplifyContext::builder().with_schema(Arc::new(DFSchema::empty())).build();
    match ExprSimplifier::new(context).simplify(expr.clone()).ok()? {
        Expr::Literal(value, _) => Some(value),
        _ => None,
    }
}

/// Whether two values are of kinds that have exact sums and products, if they have room.
fn are_exact(left: &ScalarValue, right: &ScalarValue) -> bool {
    let (left_kind, right_kind) = (left.data_type(), right.data_type());
    let are_integers = left_kind.is_integer() && left_kind == right_kind;
    are_integers || left_kind.is_decimal() && right_kind.is_decimal()
}

/// What an operator makes of two values.
///
/// # Errors
///
/// Where that has no room in its type.
fn computed(op: Operator, left: &ScalarValue, right: &ScalarValue) -> Result<ScalarValue> {
    let (left, right) = (left.to_scalar()?, right.to_scalar()?);
    let computed = match op {
        Operator::Plus => add(&left, &right)?,
        Operator::Minus => sub(&left, &right)?,
        _ => mul(&left, &right)?,
    };
    if !fits_digits(&computed) {
        return exec_err!("more digits than {} has", computed.data_type());
    }
    ScalarValue::try_from_array(&computed, 0)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::DataType;
    use datafusion::functions::math::expr_fn::abs;
    use datafusion::logical_expr::{cast, col, lit, when};

    use super::*;

    fn exceed(expr: &Expr) -> bool {
        let mut constants = Constants::default();
        expr.visit(&mut constants).unwrap();
        assert_eq!(constants.parts.len(), 1);
        constants.exceed
    }

    #[test]
    fn constants_are_computed_from_the_inside_out() {
        let great = || lit(i64::MAX);
        assert!(exceed(&(great() + lit(1_i64))));
        assert!(exceed(&(col("x") + (great() * lit(2_i64)))));
        assert!(exceed(&-(-great() - lit(1_i64))));
        assert!(exceed(&(lit(100_i8) + lit(100_i8))));
        assert!(exceed(&(when(lit(true), great()).end().unwrap() + lit(1_i64))));
        assert!(exceed(&(abs(great()) * lit(2_i64))));
        assert!(exceed(&(lit(0_u64) - lit(1_u64))));
        let digits = |value| lit(ScalarValue::Decimal128(Some(value), 38, 0));
        assert!(exceed(&(digits(10_i128.pow(38) - 1) + digits(1))));
        assert!(!exceed(&(great() + lit(-1_i64))));
        assert!(!exceed(&(cast(lit(i32::MAX), DataType::Int64) + lit(1_i64))));
        assert!(!exceed(&(col("x") + great())));
        assert!(!exceed(&(lit(f64::MAX) * lit(2.0))));
        assert!(!exceed(&(great() + lit(ScalarValue::Int64(None)))));
    }
}
