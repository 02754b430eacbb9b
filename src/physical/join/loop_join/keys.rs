//! Values in an order in which comparisons of SQL are comparisons of codes.

use std::cmp::Ordering;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, downcast_primitive_array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{ArrowNativeType, DataType, Float32Type, Float64Type};
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, internal_err};

/// Whether values of a type have such an order.
pub(super) fn has_order(data_type: &DataType) -> bool {
    has_codes(data_type)
        || data_type.is_decimal()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
        )
}

/// Whether a code of 64 bits says all of a value.
fn has_codes(data_type: &DataType) -> bool {
    use DataType::{Date32, Date64, Float32, Float64, Time32, Time64, Timestamp};
    data_type.is_integer()
        || matches!(data_type, Date32 | Date64 | Float32 | Float64 | Time32(_) | Time64(_) | Timestamp(..))
}

/// Makes keys of values of one type.
#[derive(Debug)]
pub(super) struct KeyMaker {
    data_type: DataType,
    /// For what has no codes.
    converter: Option<RowConverter>,
}

/// The keys of an array. Those of nulls mean nothing.
#[derive(Debug)]
pub(super) struct Keys {
    values: Values,
    nulls: Option<NullBuffer>,
}

#[derive(Debug)]
enum Values {
    Codes(Vec<u64>),
    Rows(Rows),
}

impl KeyMaker {
    pub(super) fn new(data_type: DataType) -> Result<Self> {
        let fields = || vec![SortField::new(data_type.clone())];
        let converter = (!has_codes(&data_type)).then(|| RowConverter::new(fields())).transpose()?;
        Ok(Self { data_type, converter })
    }

    /// The keys of values.
    pub(super) fn keys(&self, values: &ArrayRef) -> Result<Keys> {
        if *values.data_type() != self.data_type {
            return internal_err!("a bound of a join is {}, not {}", values.data_type(), self.data_type);
        }
        let nulls = values.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let values = match &self.converter {
            Some(converter) => Values::Rows(converter.convert_columns(&[ArrayRef::clone(values)])?),
            None => Values::Codes(codes(values)?),
        };
        Ok(Keys { values, nulls })
    }
}

/// The codes of values that have some. 0.0 and -0.0 have one.
fn codes(values: &ArrayRef) -> Result<Vec<u64>> {
    const SIGN: u64 = 1 << 63;
    let of_float = |value: f64| {
        let bits = (value + 0.0).to_bits();
        if bits & SIGN == 0 { bits | SIGN } else { !bits }
    };
    let of_signed = |value: i64| value.cast_unsigned() ^ SIGN;
    if values.data_type().is_unsigned_integer() {
        return Ok(downcast_primitive_array!(
            values => values.values().iter().map(|value| value.to_usize().unwrap_or(0) as u64).collect(),
            other => return internal_err!("values of {other} have no codes"),
        ));
    }
    match values.data_type() {
        DataType::Float32 => {
            let values = values.as_primitive::<Float32Type>();
            Ok(values.values().iter().map(|value| of_float(f64::from(*value))).collect())
        }
        DataType::Float64 => {
            let values = values.as_primitive::<Float64Type>();
            Ok(values.values().iter().map(|value| of_float(*value)).collect())
        }
        _ => Ok(downcast_primitive_array!(
            values => values.values().iter().map(|value| of_signed(value.to_i64().unwrap_or(0))).collect(),
            other => return internal_err!("values of {other} have no codes"),
        )),
    }
}

impl Keys {
    pub(super) fn is_null(&self, at: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(at))
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.values {
            Values::Codes(codes) => 8 * codes.len(),
            Values::Rows(rows) => rows.size(),
        }
    }

    fn len(&self) -> usize {
        match &self.values {
            Values::Codes(codes) => codes.len(),
            Values::Rows(rows) => rows.num_rows(),
        }
    }

    /// The places of keys that `count`, in order, and of equal ones in the order of the rows.
    fn order(&self, counts: impl Fn(usize) -> bool) -> Vec<u32> {
        let mut places: Vec<u32> = (0..self.len()).filter(|at| counts(*at)).map(|at| at as u32).collect();
        match &self.values {
            Values::Codes(codes) => places.sort_by_key(|at| codes[*at as usize]),
            Values::Rows(rows) => places.sort_by(|a, b| rows.row(*a as usize).cmp(&rows.row(*b as usize))),
        }
        places
    }
}

/// Keys in order.
#[derive(Debug)]
pub(super) struct SortedKeys {
    keys: Keys,
    /// Their places.
    pub(super) order: Vec<u32>,
    /// The same keys by their places in the order, where they are codes.
    sorted: Vec<u64>,
}

impl SortedKeys {
    /// The keys that are no nulls and that `count`.
    pub(super) fn new(keys: Keys, counts: impl Fn(usize) -> bool) -> Self {
        let order = keys.order(|at| !keys.is_null(at) && counts(at));
        let sorted = match &keys.values {
            Values::Codes(codes) => order.iter().map(|at| codes[*at as usize]).collect(),
            Values::Rows(_) => Vec::new(),
        };
        Self { keys, order, sorted }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + 4 * self.order.len() + 8 * self.sorted.len()
    }

    /// How many of them are less than a key of `others`.
    pub(super) fn less_than(&self, others: &Keys, at: usize) -> usize {
        self.before(others, at, Ordering::is_lt)
    }

    /// How many of them are less than a key of `others`, or equal to it.
    pub(super) fn up_to(&self, others: &Keys, at: usize) -> usize {
        self.before(others, at, Ordering::is_le)
    }

    fn before(&self, others: &Keys, at: usize, is_before: impl Fn(Ordering) -> bool) -> usize {
        match (&self.keys.values, &others.values) {
            (Values::Codes(_), Values::Codes(others)) => {
                self.sorted.partition_point(|code| is_before(code.cmp(&others[at])))
            }
            (Values::Rows(rows), Values::Rows(others)) => {
                self.order.partition_point(|place| is_before(rows.row(*place as usize).cmp(&others.row(at))))
            }
            // The same maker makes both.
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{
        BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int64Array, StringArray, UInt64Array,
    };

    use super::*;

    /// Checks that the keys of `values`, which are in order, find their places among themselves.
    fn check(values: ArrayRef) {
        let maker = KeyMaker::new(values.data_type().clone()).unwrap();
        let reversed = datafusion::arrow::compute::take(
            &values,
            &UInt64Array::from_iter_values((0..values.len() as u64).rev()),
            None,
        );
        let sorted = SortedKeys::new(maker.keys(&reversed.unwrap()).unwrap(), |_| true);
        let keys = maker.keys(&values).unwrap();
        for at in 0..values.len() {
            assert_eq!(sorted.less_than(&keys, at), at, "{values:?} {at}");
            assert_eq!(sorted.up_to(&keys, at), at + 1, "{values:?} {at}");
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_values() {
        check(Arc::new(Int8Array::from(vec![i8::MIN, -1, 0, 1, i8::MAX])));
        check(Arc::new(Int64Array::from(vec![i64::MIN, -1, 0, 1, i64::MAX])));
        check(Arc::new(UInt64Array::from(vec![0, 1, u64::MAX / 2, u64::MAX])));
        check(Arc::new(Date32Array::from(vec![i32::MIN, 0, i32::MAX])));
        let floats =
            [f64::NEG_INFINITY, -1.5, -f64::MIN_POSITIVE, 0.0, f64::MIN_POSITIVE, 2.0, f64::INFINITY, f64::NAN];
        check(Arc::new(Float64Array::from(floats.to_vec())));
        check(Arc::new(BooleanArray::from(vec![false, true])));
        check(Arc::new(StringArray::from(vec!["", "a", "a\0", "aa", "b", "ä"])));
        check(Arc::new(Decimal128Array::from(vec![i128::from(i64::MIN) * 10, -1, 0, 7])));
    }

    #[test]
    fn nulls_have_no_place() {
        let maker = KeyMaker::new(DataType::Int64).unwrap();
        let values: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None, Some(1), Some(3)]));
        let sorted = SortedKeys::new(maker.keys(&values).unwrap(), |at| at != 3);
        assert_eq!(sorted.order, [2, 0]);
    }
}
