//! Expressions whose sums, differences and products fail where they have no room.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal, NegativeExpr};
use datafusion::physical_expr::utils::{conjunction, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use crate::logical::{always_fits, bits_of_result, bits_of_type, bits_of_value};
use crate::physical::patient;

/// So deep in an expression is it asked how many bits its parts have.
const DEPTH: u32 = 4;

/// Makes expressions over rows of a schema exact.
pub(super) struct Exact<'a> {
    schema: &'a Schema,
    pub(super) has_changed: bool,
}

impl<'a> Exact<'a> {
    pub(super) fn over(schema: &'a Schema) -> Self {
        Self { schema, has_changed: false }
    }

    pub(super) fn of(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let exact = Arc::clone(expr).transform_up(|expr| exact_expr(expr, self.schema))?;
        self.has_changed |= exact.transformed;
        if exact.transformed { patient(exact.data, is_checked) } else { Ok(exact.data) }
    }

    /// Conditions that all have to hold: whoever evaluates them has patience with these.
    pub(super) fn of_all_of(&mut self, predicate: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let conditions = split_conjunction(predicate).into_iter().map(|condition| self.of(condition));
        let conditions: Vec<_> = conditions.collect::<Result<_>>()?;
        Ok(if self.has_changed { conjunction(conditions) } else { Arc::clone(predicate) })
    }

    pub(super) fn of_all(&mut self, exprs: &[Arc<dyn PhysicalExpr>]) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        exprs.iter().map(|expr| self.of(expr)).collect()
    }

    pub(super) fn of_keys(&mut self, keys: &[PhysicalSortExpr]) -> Result<Vec<PhysicalSortExpr>> {
        keys.iter().map(|key| Ok(PhysicalSortExpr { expr: self.of(&key.expr)?, options: key.options })).collect()
    }

    /// The node, if anything has changed.
    pub(super) fn then(
        &self,
        node: impl FnOnce() -> Result<Arc<dyn ExecutionPlan>>,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        self.has_changed.then(node).transpose()
    }
}

/// Whether it fails where a result has no room.
pub(super) fn is_checked(expr: &dyn PhysicalExpr) -> bool {
    let Some(binary) = expr.downcast_ref::<BinaryExpr>() else { return false };
    matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply)
        && *binary == binary.clone().with_fail_on_overflow(true)
}

fn exact_expr(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Transformed<Arc<dyn PhysicalExpr>>> {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        let Some(bits) = bits_of_arithmetic(binary, schema, DEPTH) else { return Ok(Transformed::no(expr)) };
        if always_fits(bits, *binary.op(), &kind_of(binary.right(), schema)?) {
            return Ok(Transformed::no(expr));
        }
        let checked = binary.clone().with_fail_on_overflow(true);
        // Nothing has changed where it was exact.
        return Ok(if checked == *binary { Transformed::no(expr) } else { Transformed::yes(Arc::new(checked)) });
    }
    if let Some(minus) = expr.downcast_ref::<NegativeExpr>() {
        let kind = kind_of(minus.arg(), schema)?;
        let fits = bits_of(minus.arg(), schema, DEPTH).is_none_or(|bits| always_fits(bits, Operator::Plus, &kind));
        if !kind.is_signed_integer() || fits {
            return Ok(Transformed::no(expr));
        }
        let zero = Arc::new(Literal::new(ScalarValue::new_zero(&kind)?));
        let checked = BinaryExpr::new(zero, Operator::Minus, Arc::clone(minus.arg())).with_fail_on_overflow(true);
        return Ok(Transformed::yes(Arc::new(checked)));
    }
    Ok(Transformed::no(expr))
}

/// How many bits the result of a sum, difference or product of whole numbers can have; none of anything else.
fn bits_of_arithmetic(binary: &BinaryExpr, schema: &Schema, depth: u32) -> Option<u32> {
    let is_arithmetic = matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply);
    let bits = |side| bits_of(side, schema, depth - 1);
    is_arithmetic.then(|| bits_of_result(*binary.op(), bits(binary.left())?, bits(binary.right())?)).flatten()
}

/// The type of an expression. Both sides of arithmetic of whole numbers have that of the result; to ask all of a long
/// sum, term after term, takes long.
fn kind_of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<DataType> {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};

    let mut expr = expr;
    while let Some(binary) = expr.downcast_ref::<BinaryExpr>()
        && matches!(binary.op(), Plus | Minus | Multiply | Divide | Modulo)
    {
        expr = binary.right();
    }
    expr.data_type(schema)
}

/// How many bits a whole number can have; none of anything else.
fn bits_of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema, depth: u32) -> Option<u32> {
    if let Some(literal) = expr.downcast_ref::<Literal>() {
        return bits_of_value(literal.value());
    }
    let of_type = bits_of_type(&kind_of(expr, schema).ok()?)?;
    if depth == 0 {
        return Some(of_type);
    }
    let of_parts = if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        bits_of(cast.expr(), schema, depth - 1)
    } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        match binary.op() {
            // Neither is further from 0 than what is divided.
            Operator::Divide | Operator::Modulo => bits_of(binary.left(), schema, depth - 1),
            _ => bits_of_arithmetic(binary, schema, depth),
        }
    } else {
        None
    };
    Some(of_parts.unwrap_or(of_type).min(of_type))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::{binary, cast, col, lit};

    use super::*;

    fn changes(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
        let mut exact = Exact::over(schema);
        exact.of(&expr).unwrap();
        exact.has_changed
    }

    #[test]
    fn what_always_has_room_is_left_alone() {
        let fields =
            [("b", DataType::Int64), ("i", DataType::Int32), ("u", DataType::UInt64), ("f", DataType::Float64)];
        let schema = Schema::new(fields.map(|(name, kind)| Field::new(name, kind, true)).to_vec());
        let column = |name| col(name, &schema).unwrap();
        let wide = |name| cast(column(name), &schema, DataType::Int64).unwrap();
        let of = |left, op, right| binary(left, op, right, &schema).unwrap();
        let checked = [
            of(column("b"), Operator::Plus, lit(1_i64)),
            of(column("i"), Operator::Multiply, column("i")),
            of(column("u"), Operator::Minus, lit(1_u64)),
            of(of(wide("i"), Operator::Multiply, wide("i")), Operator::Multiply, wide("i")),
            Arc::new(NegativeExpr::new(column("i"))) as Arc<dyn PhysicalExpr>,
        ];
        for expr in checked {
            assert!(changes(Arc::clone(&expr), &schema), "{expr}");
        }
        let left_alone = [
            of(wide("i"), Operator::Plus, lit(1_i64)),
            of(wide("i"), Operator::Multiply, wide("i")),
            of(of(column("b"), Operator::Modulo, lit(1000_i64)), Operator::Divide, lit(7_i64)),
            of(column("f"), Operator::Multiply, column("f")),
            of(column("b"), Operator::Gt, lit(1_i64)),
            Arc::new(NegativeExpr::new(wide("i"))) as Arc<dyn PhysicalExpr>,
        ];
        for expr in left_alone {
            assert!(!changes(Arc::clone(&expr), &schema), "{expr}");
        }
    }
}
