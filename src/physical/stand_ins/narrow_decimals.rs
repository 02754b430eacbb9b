//! Sums, differences and products of decimals, computed in 64 bits where the values of a batch allow it.
//!
//! A `Decimal128` has 128 bits whatever its precision, and SQL gives each product as many digits as there can be:
//! prices of 15 digits times rates of 15 have 31. The values are far smaller, mostly. So the bits that the values of a
//! batch have are counted, and from them follows how many bits each intermediate result can have at most. Where that is
//! too many, results are those of DataFusion, and an error where they have more digits than a type can have: it would
//! give a number out of which nobody reads the right one.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::arrow::array::{Array, AsArray, Decimal128Array, RecordBatch};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL128_MAX_SCALE, DataType, Decimal128Type, DecimalType, FieldRef, Schema,
};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::sort_properties::ExprProperties;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_expr_common::physical_expr::{fmt_sql, is_volatile};

/// After so many batches with values that need more bits, no more are looked at.
const MAX_MISSES: usize = 8;

/// The expression, over rows of `schema`, with its arithmetic of decimals in 64 bits where that is possible.
pub(crate) fn narrow_decimals(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let narrowed = expr.transform_down(|expr| {
        Ok(match NarrowDecimals::of(&expr, schema) {
            Some(narrow) => Transformed::new(Arc::new(narrow) as _, true, TreeNodeRecursion::Jump),
            None if expr.is::<NarrowDecimals>() => Transformed::new(expr, false, TreeNodeRecursion::Jump),
            None => Transformed::no(expr),
        })
    })?;
    Ok(narrowed.data)
}

/// Stands for an expression, and gives what it gives.
#[derive(Debug)]
struct NarrowDecimals {
    original: Arc<dyn PhysicalExpr>,
    program: Program,
    /// Batches whose values need more bits.
    misses: AtomicUsize,
}

/// Whether an expression stands for another one in this way.
pub(crate) fn is_narrow_decimals(expr: &dyn PhysicalExpr) -> bool {
    expr.downcast_ref::<NarrowDecimals>().is_some()
}

impl NarrowDecimals {
    fn of(original: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        let program = Program::of(original, schema)?;
        Some(Self { original: Arc::clone(original), program, misses: AtomicUsize::new(0) })
    }
}

impl PartialEq for NarrowDecimals {
    fn eq(&self, other: &Self) -> bool {
        self.original.eq(&other.original)
    }
}

impl Eq for NarrowDecimals {}

impl Hash for NarrowDecimals {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.original.hash(state);
    }
}

impl Display for NarrowDecimals {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.original.fmt(f)
    }
}

impl PhysicalExpr for NarrowDecimals {
    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.original.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if batch.num_rows() > 0 && self.misses.load(Ordering::Relaxed) < MAX_MISSES {
            if let Some(values) = self.program.run(batch)? {
                return Ok(ColumnarValue::Array(Arc::new(values)));
            }
            self.misses.fetch_add(1, Ordering::Relaxed);
        }
        let values = self.original.evaluate(batch)?;
        if self.program.precision == DECIMAL128_MAX_PRECISION {
            within_precision(&values)?;
        }
        Ok(values)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.original]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let original = children.swap_remove(0);
        Ok(match self.program.over(&original) {
            Some(program) => Arc::new(Self { original, program, misses: AtomicUsize::new(0) }),
            None => original,
        })
    }

    fn get_properties(&self, children: &[ExprProperties]) -> Result<ExprProperties> {
        Ok(children[0].clone())
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", fmt_sql(self.original.as_ref()))
    }
}

/// Fails where there are values of more digits than any type has: 128 bits have room for some.
fn within_precision(values: &ColumnarValue) -> Result<()> {
    match values {
        ColumnarValue::Array(values) => match values.as_primitive_opt::<Decimal128Type>() {
            Some(values) => Ok(values.validate_decimal_precision(DECIMAL128_MAX_PRECISION)?),
            None => Ok(()),
        },
        ColumnarValue::Scalar(ScalarValue::Decimal128(Some(value), precision, scale)) => {
            Ok(Decimal128Type::validate_decimal_precision(*value, *precision, *scale)?)
        }
        ColumnarValue::Scalar(_) => Ok(()),
    }
}

/// How the value of an expression follows from those of its leaves, which are decimals of any kind.
#[derive(Debug, Clone)]
struct Program {
    root: Term,
    leaves: Vec<Arc<dyn PhysicalExpr>>,
    precision: u8,
    scale: i8,
}

#[derive(Debug, Clone)]
enum Term {
    /// By its number.
    Leaf(usize),
    Apply(Box<Apply>),
}

/// An operation on two terms, of which each is first brought to the scale of both.
#[derive(Debug, Clone)]
struct Apply {
    op: Operator,
    left: Term,
    right: Term,
    left_factor: i64,
    right_factor: i64,
}

impl Program {
    /// Of an expression that is arithmetic of decimals.
    fn of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Self> {
        let mut leaves = Vec::new();
        match (Term::of(expr, schema, &mut leaves), expr.data_type(schema).ok()?) {
            (root @ Term::Apply(_), DataType::Decimal128(precision, scale)) => {
                Some(Self { root, leaves, precision, scale })
            }
            _ => None,
        }
    }

    /// The same over other leaves, those of an expression of the same form.
    fn over(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        let mut leaves = vec![None; self.leaves.len()];
        self.root.leaves_in(expr, &mut leaves)?;
        Some(Self { leaves: leaves.into_iter().collect::<Option<_>>()?, ..self.clone() })
    }

    /// The values for the rows of a batch; none where 64 bits are too few.
    fn run(&self, batch: &RecordBatch) -> Result<Option<Decimal128Array>> {
        let mut leaves = Vec::with_capacity(self.leaves.len());
        for leaf in &self.leaves {
            let Some(leaf) = Leaf::of(leaf.evaluate(batch)?) else { return Ok(None) };
            leaves.push(leaf);
        }
        let Some(Bounded { values: Values::Owned(values), .. }) = self.root.value(&leaves) else { return Ok(None) };
        let nulls = leaves.iter().fold(None, |nulls, leaf| NullBuffer::union(nulls.as_ref(), leaf.nulls.as_ref()));
        let values = values.into_iter().map(i128::from).collect();
        let values = Decimal128Array::try_new(values, nulls)?;
        Ok(Some(values.with_precision_and_scale(self.precision, self.scale)?))
    }
}

impl Term {
    fn of(expr: &Arc<dyn PhysicalExpr>, schema: &Schema, leaves: &mut Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let binary = expr.downcast_ref::<BinaryExpr>();
        if let Some((binary, (left_factor, right_factor))) = binary.and_then(|e| Some((e, factors(e, schema)?))) {
            let left = Self::of(binary.left(), schema, leaves);
            let right = Self::of(binary.right(), schema, leaves);
            return Self::Apply(Box::new(Apply { op: *binary.op(), left, right, left_factor, right_factor }));
        }
        // Two calls of `random()` are two values.
        let known = if is_volatile(expr) { None } else { leaves.iter().position(|leaf| leaf == expr) };
        let number = known.unwrap_or_else(|| {
            leaves.push(Arc::clone(expr));
            leaves.len() - 1
        });
        Self::Leaf(number)
    }

    fn leaves_in(&self, expr: &Arc<dyn PhysicalExpr>, leaves: &mut [Option<Arc<dyn PhysicalExpr>>]) -> Option<()> {
        match self {
            Self::Leaf(number) => leaves[*number] = Some(Arc::clone(expr)),
            Self::Apply(apply) => {
                let binary = expr.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == apply.op)?;
                apply.left.leaves_in(binary.left(), leaves)?;
                apply.right.leaves_in(binary.right(), leaves)?;
            }
        }
        Some(())
    }

    fn value<'a>(&self, leaves: &'a [Leaf]) -> Option<Bounded<'a>> {
        match self {
            Self::Leaf(number) => Some(leaves[*number].bounded()),
            Self::Apply(apply) => apply.value(leaves),
        }
    }
}

/// What the two sides of an operation on decimals are multiplied by first, as Arrow has it; none where it is not for
/// 64 bits.
fn factors(expr: &BinaryExpr, schema: &Schema) -> Option<(i64, i64)> {
    let types = (expr.left().data_type(schema).ok()?, expr.right().data_type(schema).ok()?);
    let (DataType::Decimal128(_, left), DataType::Decimal128(_, right)) = types else { return None };
    match expr.op() {
        Operator::Multiply if (0..=DECIMAL128_MAX_SCALE).contains(&left.checked_add(right)?) => Some((1, 1)),
        Operator::Plus | Operator::Minus => {
            let scale = left.max(right);
            let factor = |of: i8| 10_i64.checked_pow(u32::try_from(i16::from(scale) - i16::from(of)).ok()?);
            Some((factor(left)?, factor(right)?))
        }
        _ => None,
    }
}

impl Apply {
    fn value<'a>(&self, leaves: &'a [Leaf]) -> Option<Bounded<'a>> {
        let (left, right) = (self.left.value(leaves)?, self.right.value(leaves)?);
        let scaled = |bound: i64, factor: i64| bound.checked_mul(factor);
        let (a, b) = (scaled(left.bound, self.left_factor)?, scaled(right.bound, self.right_factor)?);
        let bound = match self.op {
            Operator::Multiply => a.checked_mul(b)?,
            _ => a.checked_add(b)?,
        };
        let (p, q) = (self.left_factor, self.right_factor);
        // By the bounds, nothing wraps.
        let values = match self.op {
            Operator::Multiply => zip(left.values, right.values, i64::wrapping_mul),
            Operator::Plus => zip(left.values, right.values, |a, b| a.wrapping_mul(p).wrapping_add(b.wrapping_mul(q))),
            _ => zip(left.values, right.values, |a, b| a.wrapping_mul(p).wrapping_sub(b.wrapping_mul(q))),
        };
        Some(Bounded { values, bound })
    }
}

/// The values of a leaf in a batch.
struct Leaf {
    values: Values<'static>,
    bound: i64,
    nulls: Option<NullBuffer>,
}

impl Leaf {
    /// None where 64 bits are too few, or the one value is null.
    fn of(values: ColumnarValue) -> Option<Self> {
        match values {
            ColumnarValue::Scalar(ScalarValue::Decimal128(Some(value), ..)) => {
                let value = i64::try_from(value).ok()?;
                Some(Self { values: Values::One(value), bound: value.checked_abs()?, nulls: None })
            }
            ColumnarValue::Array(array) => {
                let array = array.as_primitive_opt::<Decimal128Type>()?;
                let narrow: Vec<i64> = array.values().iter().map(|value| *value as i64).collect();
                // All bits that any of them has beside its sign.
                let bits = narrow.iter().fold(0, |bits, value| bits | (value ^ (value >> 63)));
                let lost = array
                    .values()
                    .iter()
                    .zip(&narrow)
                    .fold(0, |lost, (wide, narrow)| lost | ((*wide >> 64) as i64 ^ (narrow >> 63)));
                // -8 has the bits of 7.
                let bound = (lost == 0).then(|| bits.checked_add(1)).flatten()?;
                Some(Self { values: Values::Owned(narrow), bound, nulls: array.nulls().cloned() })
            }
            ColumnarValue::Scalar(_) => None,
        }
    }

    fn bounded(&self) -> Bounded<'_> {
        let values = match &self.values {
            Values::Owned(values) => Values::Borrowed(values),
            Values::Borrowed(values) => Values::Borrowed(values),
            Values::One(value) => Values::One(*value),
        };
        Bounded { values, bound: self.bound }
    }
}

/// Values of which none is larger than a bound, whatever its sign.
struct Bounded<'a> {
    values: Values<'a>,
    bound: i64,
}

enum Values<'a> {
    One(i64),
    Borrowed(&'a [i64]),
    Owned(Vec<i64>),
}

/// The results for all pairs of values.
fn zip<'a>(left: Values<'_>, right: Values<'_>, f: impl Fn(i64, i64) -> i64) -> Values<'a> {
    use Values::{Borrowed, One, Owned};
    match (left, right) {
        (One(a), One(b)) => One(f(a, b)),
        (Owned(mut values), One(b)) => {
            values.iter_mut().for_each(|a| *a = f(*a, b));
            Owned(values)
        }
        (One(a), Owned(mut values)) => {
            values.iter_mut().for_each(|b| *b = f(a, *b));
            Owned(values)
        }
        (Borrowed(values), One(b)) => Owned(values.iter().map(|a| f(*a, b)).collect()),
        (One(a), Borrowed(values)) => Owned(values.iter().map(|b| f(a, *b)).collect()),
        (Owned(mut values), Borrowed(other)) => {
            values.iter_mut().zip(other).for_each(|(a, b)| *a = f(*a, *b));
            Owned(values)
        }
        (Borrowed(other), Owned(mut values)) => {
            values.iter_mut().zip(other).for_each(|(b, a)| *b = f(*a, *b));
            Owned(values)
        }
        (Owned(mut values), Owned(other)) => {
            values.iter_mut().zip(&other).for_each(|(a, b)| *a = f(*a, *b));
            Owned(values)
        }
        (Borrowed(left), Borrowed(right)) => Owned(left.iter().zip(right).map(|(a, b)| f(*a, *b)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::ArrayRef;
    use datafusion::physical_expr::expressions::{col, lit};
    use proptest::prelude::*;

    use super::*;

    fn decimals(values: Vec<Option<i128>>, scale: i8) -> ArrayRef {
        Arc::new(Decimal128Array::from(values).with_precision_and_scale(38, scale).unwrap())
    }

    fn binary(left: Arc<dyn PhysicalExpr>, op: Operator, right: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        Arc::new(BinaryExpr::new(left, op, right))
    }

    /// `a * (1 - b) + c` over `a` and `b` of scale 2, and `c` of scale 3.
    fn price(schema: &Schema) -> Arc<dyn PhysicalExpr> {
        let column = |name| col(name, schema).unwrap();
        let one = lit(ScalarValue::Decimal128(Some(1), 20, 0));
        let product = binary(column("a"), Operator::Multiply, binary(one, Operator::Minus, column("b")));
        binary(product, Operator::Plus, column("c"))
    }

    fn batch(rows: &[[Option<i128>; 3]]) -> RecordBatch {
        let column = |number: usize, scale| decimals(rows.iter().map(|row| row[number]).collect(), scale);
        RecordBatch::try_from_iter_with_nullable([
            ("a", column(0, 2), true),
            ("b", column(1, 2), true),
            ("c", column(2, 3), true),
        ])
        .unwrap()
    }

    fn of_batch(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<ArrayRef> {
        expr.evaluate(batch)?.into_array(batch.num_rows())
    }

    fn narrow(rows: &[[Option<i128>; 3]]) -> Option<Decimal128Array> {
        let batch = batch(rows);
        Program::of(&price(&batch.schema()), &batch.schema()).unwrap().run(&batch).unwrap()
    }

    proptest! {
        #[test]
        fn values_are_those_of_128_bits(
            rows in (0_u32..120).prop_flat_map(|bits| {
                let value = any::<i128>().prop_map(move |value| value >> (127 - bits.min(126)));
                prop::collection::vec(prop::array::uniform3(prop::option::weighted(0.9, value)), 1..40)
            })
        ) {
            let batch = batch(&rows);
            let original = price(&batch.schema());
            let narrowed = narrow_decimals(Arc::clone(&original), &batch.schema()).unwrap();
            prop_assert!(narrowed.is::<NarrowDecimals>());
            match (of_batch(&original, &batch), of_batch(&narrowed, &batch)) {
                (Ok(expected), Ok(given)) => {
                    prop_assert_eq!(expected.data_type(), given.data_type());
                    prop_assert_eq!(&expected, &given);
                }
                (Err(expected), Err(given)) => prop_assert_eq!(expected.to_string(), given.to_string()),
                // What has too many digits is an error.
                (Ok(expected), Err(_)) => {
                    let expected = expected.as_primitive::<Decimal128Type>();
                    prop_assert!(expected.validate_decimal_precision(DECIMAL128_MAX_PRECISION).is_err());
                }
                (expected, given) => prop_assert!(false, "{:?} but {:?}", expected, given),
            }
        }
    }

    #[test]
    fn what_needs_more_bits_is_left() {
        let of = |a: i128| narrow(&[[Some(a), Some(4), Some(-7)], [Some(1), None, Some(1)]]);
        assert!(of(10_495_950).is_some());
        assert!(of(-(1 << 55)).is_some());
        // 2^57 times at most 108, and 70.
        assert!(of(1 << 57).is_none());
        assert!(of(1 << 64).is_none());
        assert!(of(i128::from(i64::MIN)).is_none());
    }

    #[test]
    fn other_columns_may_be_put_in() {
        let rows = batch(&[[Some(250), Some(10), Some(5)]]);
        let narrowed = narrow_decimals(price(&rows.schema()), &rows.schema()).unwrap();
        let swapped = narrowed.transform_up(|expr| {
            let is_c =
                expr.downcast_ref::<datafusion::physical_expr::expressions::Column>().is_some_and(|c| c.index() == 0);
            Ok(if is_c { Transformed::yes(col("b", &rows.schema())?) } else { Transformed::no(expr) })
        });
        let swapped = swapped.unwrap().data;
        assert!(swapped.is::<NarrowDecimals>());
        assert_eq!(swapped.to_string(), "b@1 * (1 - b@1) + c@2");
        // 0.10 * 0.90 + 0.005
        assert_eq!(of_batch(&swapped, &rows).unwrap().as_primitive::<Decimal128Type>().value(0), 950);
    }
}
