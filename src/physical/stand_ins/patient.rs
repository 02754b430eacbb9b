//! Conditions that fail for a row only if no other one beside them decides it.
//!
//! `k = 2 AND a * b > 0` is evaluated of all rows where more than a few have that `k`, also of those whose product has
//! no room in its type. Where a condition fails, it is evaluated again, of the rows that the others leave open, in
//! whichever order that can be done:
//!
//! ```text
//! a * b > 0    AND k = 2      fails for some of all rows
//! k = 2                       false for rows 1, 2 and 4
//! a * b > 0                   is asked for row 3 alone
//! ```
//!
//! It costs nothing as long as nothing fails.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use datafusion::arrow::compute::{and_kleene, filter_record_batch, not, or_kleene};
use datafusion::arrow::datatypes::{FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, NotExpr};
use datafusion::physical_expr_common::physical_expr::{fmt_sql, is_volatile};

/// So deep are conditions patient with others in them: what fails is asked for again at each level.
const DEPTH: u32 = 8;

/// An expression, with the conditions in it patient that have a part like this.
pub(crate) fn patient(
    expr: Arc<dyn PhysicalExpr>,
    may_fail: impl Fn(&dyn PhysicalExpr) -> bool,
) -> Result<Arc<dyn PhysicalExpr>> {
    let patient = |expr: Arc<dyn PhysicalExpr>| {
        if expr.is::<Patient>() {
            return Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump));
        }
        let is_patient = op_of(&expr).is_some()
            && !is_volatile(&expr)
            && expr.exists(|part: &Arc<dyn PhysicalExpr>| Ok(may_fail(part.as_ref())))?;
        Ok(match is_patient {
            true => Transformed::new(Arc::new(Patient { condition: expr }) as _, true, TreeNodeRecursion::Jump),
            false => Transformed::no(expr),
        })
    };
    expr.transform_down(patient).data()
}

/// The value of a condition that has failed, if all rows can do without what has.
pub(crate) fn patiently(condition: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    to_depth(DEPTH, condition, batch)
}

fn to_depth(depth: u32, condition: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    if let Some(not_expr) = condition.downcast_ref::<NotExpr>() {
        return Ok(not(&to_depth(depth, not_expr.arg(), batch)?)?);
    }
    let Some(op) = op_of(condition).filter(|_| depth > 0) else {
        let value = condition.evaluate(batch)?.into_array(batch.num_rows())?;
        return match value.as_boolean_opt() {
            Some(value) => Ok(value.clone()),
            None => exec_err!("the condition {condition} gives {}, not Boolean", value.data_type()),
        };
    };
    let (mut open, mut failure) = (Vec::new(), None);
    parts_of(condition, op, &mut open);
    // The value that decides a row, whatever the others are.
    let deciding = op == Operator::Or;
    let mut known = BooleanArray::from(vec![!deciding; batch.num_rows()]);
    while !open.is_empty() {
        let before = open.len();
        let mut later = Vec::new();
        for part in open {
            let is_open: BooleanArray = known.iter().map(|value| Some(value != Some(deciding))).collect();
            match to_depth(depth - 1, &part, &filter_record_batch(batch, &is_open)?) {
                Ok(values) => {
                    let mut values = values.iter();
                    let all: BooleanArray = (is_open.values().iter().zip(known.iter()))
                        .map(|(is_open, known)| if is_open { values.next().flatten() } else { known })
                        .collect();
                    known = if deciding { or_kleene(&known, &all)? } else { and_kleene(&known, &all)? };
                }
                Err(error) => {
                    failure = Some(error);
                    later.push(part);
                }
            }
        }
        if let (true, Some(error)) = (later.len() == before, failure.take()) {
            return Err(error);
        }
        open = later;
    }
    Ok(known)
}

fn op_of(condition: &Arc<dyn PhysicalExpr>) -> Option<Operator> {
    let op = *condition.downcast_ref::<BinaryExpr>()?.op();
    matches!(op, Operator::And | Operator::Or).then_some(op)
}

/// Those that an operator puts together.
fn parts_of(condition: &Arc<dyn PhysicalExpr>, op: Operator, parts: &mut Vec<Arc<dyn PhysicalExpr>>) {
    match condition.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == op) {
        Some(binary) => {
            parts_of(binary.left(), op, parts);
            parts_of(binary.right(), op, parts);
        }
        None => parts.push(Arc::clone(condition)),
    }
}

/// Stands for a condition, and gives what it gives.
#[derive(Debug)]
struct Patient {
    condition: Arc<dyn PhysicalExpr>,
}

impl PartialEq for Patient {
    fn eq(&self, other: &Self) -> bool {
        self.condition.eq(&other.condition)
    }
}

impl Eq for Patient {}

impl Hash for Patient {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
    }
}

impl Display for Patient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.condition.fmt(f)
    }
}

impl PhysicalExpr for Patient {
    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.condition.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        match self.condition.evaluate(batch) {
            Ok(value) => Ok(value),
            Err(_) => Ok(ColumnarValue::Array(Arc::new(patiently(&self.condition, batch)?))),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self { condition: children.swap_remove(0) }))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", fmt_sql(self.condition.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::common::DFSchema;
    use datafusion::prelude::{Expr, SessionContext, col, lit};

    use super::*;

    #[test]
    fn what_fails_is_asked_of_the_rows_that_are_open() {
        let numbers = Int64Array::from(vec![Some(0), Some(1), Some(2), None, Some(5)]);
        let batch = RecordBatch::try_from_iter([("x", Arc::new(numbers) as ArrayRef)]).unwrap();
        let schema = DFSchema::try_from(batch.schema()).unwrap();
        let value = |condition: Expr| {
            let condition = SessionContext::new().create_physical_expr(condition, &schema).unwrap();
            assert!(condition.evaluate(&batch).is_err(), "{condition}");
            let patient = patient(condition, |_| true).unwrap();
            let value = patient.evaluate(&batch)?.into_array(5)?;
            Ok::<_, datafusion::error::DataFusionError>(value.as_boolean().iter().collect::<Vec<_>>())
        };
        let fails = || (lit(10_i64) / col("x")).gt(lit(2_i64));
        let is_not_zero = || col("x").not_eq(lit(0_i64));
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(value(fails().and(is_not_zero())).unwrap(), [no, yes, yes, None, no]);
        assert_eq!(value(fails().or(col("x").eq(lit(0_i64)))).unwrap(), [yes, yes, yes, None, no]);
        assert_eq!(value(!(fails().and(is_not_zero()))).unwrap(), [yes, no, no, None, yes]);
        let nested = fails().and(col("x").lt(lit(9_i64)).and(is_not_zero().or(col("x").gt(lit(99_i64)))));
        assert_eq!(value(nested).unwrap(), [no, yes, yes, None, no]);
        let error = value(fails().and(col("x").lt(lit(9_i64)))).unwrap_err();
        assert!(error.to_string().contains("Divide by zero"), "{error}");
    }
}
