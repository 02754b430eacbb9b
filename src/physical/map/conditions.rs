//! Conditions that all have to hold.
//!
//! Those that cost next to nothing and cannot fail, comparisons of numbers and times, are evaluated of all rows, and
//! what they give is put together bit by bit: to copy the few rows that passed the first one, so that the next one sees
//! no others, takes longer than to compare. What is dearer sees only the rows that are left, where these are few.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use datafusion::arrow::buffer::BooleanBuffer;
use datafusion::arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, IsNotNullExpr, IsNullExpr, Literal};
use datafusion::physical_expr::utils::{collect_columns, conjunction, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;

use crate::physical::patiently;

/// Rows are copied for the conditions behind where one in so many is left.
const FEW: usize = 5;

/// The conditions of a filter.
pub(super) struct Conditions {
    /// Those that are evaluated of all rows.
    plain: Vec<Arc<dyn PhysicalExpr>>,
    rest: Option<Rest>,
}

/// What is evaluated of the rows that are left.
struct Rest {
    /// Over the columns that it needs.
    condition: Arc<dyn PhysicalExpr>,
    columns: Vec<usize>,
}

impl Conditions {
    /// Those of a predicate over rows of `schema`.
    pub(super) fn of(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Self> {
        let conditions = split_conjunction(predicate);
        // A draw belongs to its row, whichever rows are left.
        let num_plain = match is_volatile(predicate) {
            true => 0,
            false => conditions.iter().take_while(|condition| is_plain(condition, schema)).count(),
        };
        let rest = match num_plain {
            0 => vec![predicate],
            _ => conditions[num_plain..].to_vec(),
        };
        let rest = match rest.is_empty() {
            true => None,
            false => Some(Rest::of(conjunction(rest.into_iter().map(Arc::clone)))?),
        };
        Ok(Self { plain: conditions[..num_plain].iter().map(|condition| Arc::clone(condition)).collect(), rest })
    }

    /// Of each row, whether all hold.
    pub(super) fn hold(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let mut kept: Option<BooleanBuffer> = None;
        for condition in &self.plain {
            let holds = holds(condition, batch)?;
            kept = Some(match kept {
                Some(kept) => &kept & &holds,
                None => holds,
            });
        }
        let kept = match (kept, &self.rest) {
            (Some(kept), None) => kept,
            (None, Some(rest)) => holds(&rest.condition, &batch.project(&rest.columns)?)?,
            (Some(kept), Some(rest)) => rest.of_those(kept, batch)?,
            (None, None) => BooleanBuffer::new_set(batch.num_rows()),
        };
        Ok(BooleanArray::new(kept, None))
    }
}

impl Rest {
    fn of(condition: Arc<dyn PhysicalExpr>) -> Result<Self> {
        let mut columns: Vec<usize> = collect_columns(&condition).iter().map(Column::index).collect();
        columns.sort_unstable();
        columns.dedup();
        let place = |expr: Arc<dyn PhysicalExpr>| {
            let Some(column) = expr.downcast_ref::<Column>() else { return Ok(Transformed::no(expr)) };
            let place = columns.iter().position(|index| *index == column.index()).unwrap_or(column.index());
            Ok(Transformed::yes(Arc::new(Column::new(column.name(), place)) as _))
        };
        let condition = condition.transform(place).data()?;
        Ok(Self { condition, columns })
    }

    /// Which of the rows that are left it holds for.
    fn of_those(&self, left: BooleanBuffer, batch: &RecordBatch) -> Result<BooleanBuffer> {
        let (rows, batch) = (left.count_set_bits(), batch.project(&self.columns)?);
        if rows == 0 {
            return Ok(left);
        }
        // What fails is asked of the rows that are left.
        if rows * FEW > left.len()
            && let Ok(holds) = holds(&self.condition, &batch)
        {
            return Ok(&left & &holds);
        }
        let holds = holds(&self.condition, &filter_record_batch(&batch, &BooleanArray::new(left.clone(), None))?)?;
        let mut kept = vec![false; left.len()];
        left.set_indices().zip(&holds).for_each(|(row, holds)| kept[row] = holds);
        Ok(BooleanBuffer::from(kept))
    }
}

/// Of each row, whether a condition is true.
fn holds(condition: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanBuffer> {
    let holds = match condition.evaluate(batch) {
        Ok(holds) => holds.into_array(batch.num_rows())?,
        Err(error) if is_volatile(condition) => return Err(error),
        Err(_) => Arc::new(patiently(condition, batch)?),
    };
    if holds.data_type() != &DataType::Boolean {
        return exec_err!("the filter {condition} gives {}, not Boolean", holds.data_type());
    }
    let holds = holds.as_boolean();
    Ok(match holds.nulls() {
        Some(nulls) => holds.values() & nulls.inner(),
        None => holds.values().clone(),
    })
}

/// Whether it compares columns and constants that are numbers or times.
fn is_plain(condition: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let is_column = |expr: &Arc<dyn PhysicalExpr>| expr.is::<Column>();
    if let Some(comparison) = condition.downcast_ref::<BinaryExpr>() {
        use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};

        let is_number = |expr: &Arc<dyn PhysicalExpr>| {
            (is_column(expr) || expr.is::<Literal>()) && expr.data_type(schema).is_ok_and(|kind| kind.is_primitive())
        };
        return matches!(comparison.op(), Eq | NotEq | Lt | LtEq | Gt | GtEq)
            && is_number(comparison.left())
            && is_number(comparison.right());
    }
    let nulls = condition.downcast_ref::<IsNullExpr>().map(IsNullExpr::arg);
    nulls.or(condition.downcast_ref::<IsNotNullExpr>().map(IsNotNullExpr::arg)).is_some_and(is_column)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
    use datafusion::common::DFSchema;
    use datafusion::prelude::{SessionContext, col, lit};

    use super::*;

    /// Rows with nulls, of which `rest` sees those that `few` leaves.
    fn batch() -> RecordBatch {
        let numbers = Int64Array::from_iter((0..1000_i64).map(|n| (n % 7 != 0).then_some(n)));
        let texts = StringArray::from_iter((0..1000).map(|n| (n % 5 != 0).then(|| format!("text {}", n % 3))));
        RecordBatch::try_from_iter([("n", Arc::new(numbers) as ArrayRef), ("t", Arc::new(texts))]).unwrap()
    }

    #[test]
    fn they_are_what_the_whole_predicate_says() {
        let (batch, context) = (batch(), SessionContext::new());
        let schema = DFSchema::try_from(batch.schema()).unwrap();
        let text = || col("t").like(lit("%1"));
        let number = |least: i64| col("n").gt(lit(least));
        for (predicate, plain, has_rest) in [
            (number(3).and(col("n").lt(lit(900_i64))), 2, false),
            (number(3).and(text()), 1, true),
            (number(950).and(col("t").is_not_null()).and(text()), 2, true),
            (number(2000).and(text()), 1, true),
            (text().and(number(3)), 0, true),
            (number(3).or(text()), 0, true),
            (col("n").is_null().and(text()).and(number(3)), 1, true),
        ] {
            let predicate = context.create_physical_expr(predicate, &schema).unwrap();
            let conditions = Conditions::of(&predicate, &batch.schema()).unwrap();
            assert_eq!((conditions.plain.len(), conditions.rest.is_some()), (plain, has_rest), "{predicate}");
            let whole = predicate.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
            let expected: Vec<bool> = whole.as_boolean().iter().map(|holds| holds == Some(true)).collect();
            let kept = conditions.hold(&batch).unwrap();
            assert_eq!(kept.values().iter().collect::<Vec<_>>(), expected, "{predicate}");
        }
    }

    #[test]
    fn what_may_fail_sees_the_rows_that_are_left() {
        let (batch, context) = (batch(), SessionContext::new());
        let schema = DFSchema::try_from(batch.schema()).unwrap();
        let fails = (lit(1_i64) / (col("n") - lit(2_i64))).gt(lit(-1_i64));
        let predicate = context.create_physical_expr(col("n").gt(lit(950_i64)).and(fails), &schema).unwrap();
        assert!(Conditions::of(&predicate, &batch.schema()).unwrap().hold(&batch).unwrap().true_count() > 0);
    }
}
