//! What is known of expressions: which columns they may name, whether they compare, whether they make an error of some
//! values.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast, ScalarFunction};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator};

use super::numbers::{always_fits, bits_of_result, bits_of_type, bits_of_value, have_room};

/// Functions that count something in a text, whatever it is.
const COUNT_LETTERS: &[&str] =
    &["ascii", "bit_length", "character_length", "find_in_set", "levenshtein", "octet_length", "strpos"];

/// The columns that expressions of a node may name.
pub(crate) fn columns_within(node: &LogicalPlan) -> Result<DFSchema> {
    match node {
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())
        }
        node => Ok(merge_schema(&node.inputs())),
    }
}

/// Whether an expression of a node has such a part.
pub(crate) fn has_part(node: &LogicalPlan, is_such: impl Fn(&Expr) -> bool) -> bool {
    let mut any = false;
    // The closures do not fail.
    let _ = node.apply_expressions(|expr| {
        any |= expr.exists(|part| Ok(is_such(part))).unwrap_or(true);
        Ok(if any { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    any
}

/// Whether there is such a node in a plan or its subqueries. To look costs a part of what a rewrite does that finds
/// nothing.
pub(crate) fn has_node(plan: &LogicalPlan, is_such: impl Fn(&LogicalPlan) -> bool) -> bool {
    let mut any = false;
    // The closure does not fail.
    let _ = plan.apply_with_subqueries(|node| {
        any |= is_such(node);
        Ok(if any { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    any
}

/// Whether expressions of a node have casts.
pub(crate) fn has_casts(node: &LogicalPlan) -> bool {
    has_part(node, |part| matches!(part, Expr::Cast(_) | Expr::TryCast(_)))
}

/// Whether an expression is a subquery.
pub(crate) fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_))
}

/// Whether an operator compares two values.
pub(crate) fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Whether sums, differences or products of whole numbers are a part of an expression, other than of literals.
pub(crate) fn computes_integers(expr: &Expr, schema: &DFSchema) -> bool {
    let computes = |part: &Expr| match part {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Plus | Operator::Minus | Operator::Multiply, .. })
        | Expr::Negative(_) => part.any_column_refs() && part.get_type(schema).is_ok_and(|of| of.is_integer()),
        _ => false,
    };
    expr.exists(|part| Ok(computes(part))).unwrap_or(false)
}

/// Whether there are values of which it makes an error.
pub(crate) fn may_fail(expr: &Expr, schema: &DFSchema) -> bool {
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    let is_literal = |expr: &Expr| matches!(expr, Expr::Literal(..));
    let fails = |expr: &Expr| match expr {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => {
            type_of(expr).is_none_or(|of| !of.is_floating()) && !is_other_than_zero(right)
        }
        Expr::Cast(Cast { expr, field }) => {
            !is_literal(expr) && type_of(expr).is_none_or(|from| has_no_room(&from, field.data_type()))
        }
        // What reads a time or a number from a text.
        Expr::ScalarFunction(ScalarFunction { func, .. }) if COUNT_LETTERS.contains(&func.name()) => false,
        Expr::ScalarFunction(ScalarFunction { args, .. }) => {
            let of_text = |arg: &Expr| !is_literal(arg) && type_of(arg).is_some_and(|of| of.is_string());
            let gives = type_of(expr);
            args.iter().any(of_text) && gives.is_none_or(|of| !of.is_string() && of != DataType::Boolean)
        }
        _ => false,
    };
    expr.exists(|expr| Ok(fails(expr))).unwrap_or(true)
}

/// Whether there are whole numbers of which it makes one that has no room in its type, mostly far from all others.
pub(crate) fn may_exceed(expr: &Expr, schema: &DFSchema) -> bool {
    let exceeds = |part: &Expr| match part {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if bits_of_result(*op, 0, 0).is_some() => {
            let bits = || bits_of_result(*op, bits_of(left, schema)?, bits_of(right, schema)?);
            bits().is_some_and(|bits| kind_of(right, schema).is_none_or(|kind| !always_fits(bits, *op, &kind)))
        }
        _ => false,
    };
    expr.exists(|part| Ok(exceeds(part))).unwrap_or(true)
}

/// How many bits a whole number can have beside its sign; none of anything else.
fn bits_of(expr: &Expr, schema: &DFSchema) -> Option<u32> {
    match expr {
        Expr::Literal(value, _) => bits_of_value(value),
        Expr::Cast(Cast { expr: inner, .. }) => {
            let of_inner = inner.get_type(schema).ok().and_then(|kind| bits_of_type(&kind));
            of_inner.or_else(|| bits_of_type(&expr.get_type(schema).ok()?))
        }
        expr => bits_of_type(&kind_of(expr, schema)?),
    }
}

/// The type of a whole number. Both sides of arithmetic have that of the result; to ask all of a long sum, term after
/// term, takes long.
fn kind_of(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    let mut expr = expr;
    while let Expr::BinaryExpr(BinaryExpr { op, right, .. }) = expr
        && bits_of_result(*op, 0, 0).is_some()
    {
        expr = right;
    }
    expr.get_type(schema).ok()
}

/// Whether a cast may find a value that the type does not have.
fn has_no_room(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (from, to) if from.is_string() => !to.is_string(),
        (from, to) if from.is_floating() => to.is_integer() || to.is_decimal(),
        (from, to) => have_room(from, to) == Some(false),
    }
}

fn is_other_than_zero(expr: &Expr) -> bool {
    let Expr::Literal(value, _) = expr else { return false };
    !value.is_null() && ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| *value != zero)
}

/// Whether it may be evaluated more than once, and decides of others.
pub(crate) fn is_guard(expr: &Expr, schema: &DFSchema) -> bool {
    let is_subquery = |expr: &Expr| matches!(expr, Expr::ScalarSubquery(_));
    is_of_some(expr) && !may_exceed(expr, schema) && !expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or(true)
}

/// Whether it may be evaluated of some rows alone. A subquery that depends on no row has one value for all.
pub(crate) fn is_of_some(expr: &Expr) -> bool {
    let is_plain = |expr: &Expr| {
        !matches!(
            expr,
            Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::Unnest(_)
        )
    };
    !expr.is_volatile() && !expr.exists(|expr| Ok(!is_plain(expr))).unwrap_or(true)
}
