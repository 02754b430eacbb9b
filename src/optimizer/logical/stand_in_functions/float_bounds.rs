//! The least and the greatest of floating-point numbers by group, as numbers are sorted: NaN is above all others.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use datafusion::arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int32Type, Int64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{AggregateUDF, EmitTo, GroupsAccumulator};

/// Finds them among whole numbers that are in the same order.
pub(super) struct FloatBounds {
    of_integers: Box<dyn GroupsAccumulator>,
    kind: DataType,
}

/// Whether bounds of a type are found so.
pub(super) fn has_float_bounds(kind: &DataType) -> bool {
    integer_of(kind).is_some()
}

fn integer_of(kind: &DataType) -> Option<DataType> {
    match kind {
        DataType::Float64 => Some(DataType::Int64),
        DataType::Float32 => Some(DataType::Int32),
        _ => None,
    }
}

impl FloatBounds {
    /// Those that `function`, which is `min` or `max`, would find among floating-point numbers.
    pub(super) fn of(function: &AggregateUDF, args: AccumulatorArgs) -> Result<Self> {
        let kind = args.return_field.data_type().clone();
        let Some(integer) = integer_of(&kind) else {
            return internal_err!("bounds of {kind} are not those of floating-point numbers");
        };
        let integer = Arc::new(Field::new(args.return_field.name(), integer, true));
        let of_integers = function.create_groups_accumulator(AccumulatorArgs { return_field: integer, ..args })?;
        Ok(Self { of_integers, kind })
    }

    fn floats(&self, integers: &ArrayRef) -> ArrayRef {
        match self.kind {
            DataType::Float32 => {
                let integers = integers.as_primitive::<Int32Type>();
                Arc::new(integers.unary::<_, Float32Type>(|value| f32::from_bits(in_order_32(value) as u32)))
            }
            _ => {
                let integers = integers.as_primitive::<Int64Type>();
                Arc::new(integers.unary::<_, Float64Type>(|value| f64::from_bits(in_order_64(value) as u64)))
            }
        }
    }
}

/// Whole numbers in the order of the floating-point numbers of an array.
fn integers(floats: &ArrayRef) -> ArrayRef {
    match floats.data_type() {
        DataType::Float32 => {
            let integers: PrimitiveArray<Int32Type> =
                floats.as_primitive::<Float32Type>().unary(|value| in_order_32(value.to_bits() as i32));
            Arc::new(integers)
        }
        _ => {
            let integers: PrimitiveArray<Int64Type> =
                floats.as_primitive::<Float64Type>().unary(|value| in_order_64(value.to_bits() as i64));
            Arc::new(integers)
        }
    }
}

/// Of the bits of a number its place in the order of all, and of this the bits.
fn in_order_64(bits: i64) -> i64 {
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

fn in_order_32(bits: i32) -> i32 {
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

impl GroupsAccumulator for FloatBounds {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total_groups: usize,
    ) -> Result<()> {
        let values: Vec<ArrayRef> = values.iter().map(integers).collect();
        self.of_integers.update_batch(&values, groups, filter, total_groups)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total_groups: usize) -> Result<()> {
        let values: Vec<ArrayRef> = values.iter().map(integers).collect();
        self.of_integers.merge_batch(&values, groups, total_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let found = self.of_integers.evaluate(emit_to)?;
        Ok(self.floats(&found))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let state = self.of_integers.state(emit_to)?;
        Ok(state.iter().map(|found| self.floats(found)).collect())
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values: Vec<ArrayRef> = values.iter().map(integers).collect();
        let state = self.of_integers.convert_to_state(&values, filter)?;
        Ok(state.iter().map(|found| self.floats(found)).collect())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.of_integers.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_order_of_their_integers() {
        let numbers = [f64::NEG_INFINITY, -1e300, -1.0, -0.0, 0.0, 1e-320, 1.0, f64::MAX, f64::INFINITY, f64::NAN];
        let places = numbers.map(|number| in_order_64(number.to_bits() as i64));
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(places.map(|place| f64::from_bits(in_order_64(place) as u64).to_bits()), numbers.map(f64::to_bits));
        let places = numbers.map(|number| in_order_32((number as f32).to_bits() as i32));
        assert!(places.is_sorted(), "{places:?}");
    }
}
