//! Sums that fail where they exceed their type.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray,
};
use datafusion::arrow::compute::sum_checked;
use datafusion::arrow::datatypes::{
    ArrowNativeType, ArrowNumericType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType, Int64Type, TimeUnit,
    UInt64Type, i256,
};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

use crate::functions::{exceeds, fits_digits};

/// Calls a function of a type of numbers for the one of a data type, if sums of it are checked.
macro_rules! of_numbers {
    ($kind:expr, $of:ident ( $($argument:expr),* )) => {
        match $kind {
            DataType::Int64 => Some($of::<Int64Type>($($argument),*)),
            DataType::UInt64 => Some($of::<UInt64Type>($($argument),*)),
            DataType::Decimal32(..) => Some($of::<Decimal32Type>($($argument),*)),
            DataType::Decimal64(..) => Some($of::<Decimal64Type>($($argument),*)),
            DataType::Decimal128(..) => Some($of::<Decimal128Type>($($argument),*)),
            DataType::Decimal256(..) => Some($of::<Decimal256Type>($($argument),*)),
            DataType::Duration(TimeUnit::Second) => Some($of::<DurationSecondType>($($argument),*)),
            DataType::Duration(TimeUnit::Millisecond) => Some($of::<DurationMillisecondType>($($argument),*)),
            DataType::Duration(TimeUnit::Microsecond) => Some($of::<DurationMicrosecondType>($($argument),*)),
            DataType::Duration(TimeUnit::Nanosecond) => Some($of::<DurationNanosecondType>($($argument),*)),
            _ => None,
        }
    };
}

/// What is summed up, for what is said of it.
#[derive(Debug, Clone)]
struct Summed {
    name: String,
    kind: DataType,
}

impl Summed {
    fn of(args: &AccumulatorArgs) -> Self {
        Self { name: args.name.to_owned(), kind: args.return_field.data_type().clone() }
    }

    fn exceeds(&self) -> DataFusionError {
        exceeds(&self.name, &self.kind)
    }

    /// A sum, if it has no more digits than its type.
    fn value<T: ArrowPrimitiveType>(&self, sum: Option<T::Native>) -> Result<ScalarValue> {
        let sum = ScalarValue::new_primitive::<T>(sum, &self.kind)?;
        if self.kind.is_decimal() && !fits_digits(&sum.to_array()?) {
            return Err(self.exceeds());
        }
        Ok(sum)
    }
}

/// The sum of all rows.
pub(super) fn of_rows(args: &AccumulatorArgs) -> Option<Box<dyn Accumulator>> {
    fn of<T: ArrowNumericType>(summed: Summed) -> Box<dyn Accumulator> {
        Box::new(OfRows::<T> { sum: None, summed })
    }
    of_numbers!(args.return_field.data_type(), of(Summed::of(args)))
}

/// The sum of the distinct values that `inner` collects.
pub(super) fn of_distinct(inner: Box<dyn Accumulator>, args: &AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
    Ok(Box::new(OfDistinct { inner, summed: Summed::of(args) }))
}

/// The sums of groups.
pub(super) fn of_groups(args: &AccumulatorArgs) -> Option<Box<dyn GroupsAccumulator>> {
    fn of<T: ArrowNumericType + Send>(summed: Summed) -> Box<dyn GroupsAccumulator> {
        let has_exceeded = Arc::new(AtomicBool::new(false));
        let exceeded = Arc::clone(&has_exceeded);
        let add = move |sum: &mut T::Native, value: T::Native| match sum.add_checked(value) {
            Ok(more) => *sum = more,
            Err(_) => exceeded.store(true, Ordering::Relaxed),
        };
        let sums = Box::new(PrimitiveGroupsAccumulator::<T, _>::new(&summed.kind, add));
        Box::new(OfGroups { sums, has_exceeded, summed })
    }
    of_numbers!(args.return_field.data_type(), of(Summed::of(args)))
}

/// The sum of a frame that moves.
pub(super) fn of_frames(args: &AccumulatorArgs) -> Option<Box<dyn Accumulator>> {
    fn of<T: ArrowNumericType<Native: Wide> + Send>(summed: Summed) -> Box<dyn Accumulator> {
        Box::new(OfFrames::<T> { sum: i256::ZERO, count: 0, summed, of: PhantomData })
    }
    of_numbers!(args.return_field.data_type(), of(Summed::of(args)))
}

struct OfRows<T: ArrowNumericType> {
    sum: Option<T::Native>,
    summed: Summed,
}

impl<T: ArrowNumericType> fmt::Debug for OfRows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfRows").field("sum", &self.sum).field("summed", &self.summed).finish()
    }
}

impl<T: ArrowNumericType> Accumulator for OfRows<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        if let Some(more) = sum_checked(values[0].as_primitive::<T>()).map_err(|_| self.summed.exceeds())? {
            let sum = self.sum.unwrap_or(T::Native::ZERO).add_checked(more);
            self.sum = Some(sum.map_err(|_| self.summed.exceeds())?);
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.summed.value::<T>(self.sum)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.summed.name.capacity()
    }
}

#[derive(Debug)]
struct OfDistinct {
    inner: Box<dyn Accumulator>,
    summed: Summed,
}

impl Accumulator for OfDistinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        fn sum<T: ArrowNumericType>(values: &ArrayRef, summed: &Summed) -> Result<ScalarValue> {
            let sum = sum_checked(values.as_primitive::<T>()).map_err(|_| summed.exceeds())?;
            summed.value::<T>(sum)
        }
        let state = self.inner.state()?;
        let [ScalarValue::List(values)] = state.as_slice() else {
            return internal_err!("{} has no list of its distinct values", self.summed.name);
        };
        let values = values.value(0);
        match of_numbers!(self.summed.kind, sum(&values, &self.summed)) {
            Some(sum) => sum,
            None => internal_err!("{} is not a sum of numbers", self.summed.name),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size() + self.summed.name.capacity()
    }
}

struct OfGroups {
    sums: Box<dyn GroupsAccumulator>,
    /// Set while values are added, which cannot fail.
    has_exceeded: Arc<AtomicBool>,
    summed: Summed,
}

impl OfGroups {
    fn checked(&self) -> Result<()> {
        if self.has_exceeded.load(Ordering::Relaxed) { Err(self.summed.exceeds()) } else { Ok(()) }
    }
}

impl GroupsAccumulator for OfGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total_groups: usize,
    ) -> Result<()> {
        self.sums.update_batch(values, groups, filter, total_groups)?;
        self.checked()
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total_groups: usize) -> Result<()> {
        self.sums.merge_batch(states, groups, total_groups)?;
        self.checked()
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = self.sums.evaluate(emit_to)?;
        if fits_digits(&sums) { Ok(sums) } else { Err(self.summed.exceeds()) }
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.sums.state(emit_to)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.sums.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.sums.size()
    }
}

/// A number that fits another type, in which no sum of a frame exceeds.
trait Wide: ArrowNativeType {
    fn widened(self) -> i256;
    fn narrowed(wide: i256) -> Option<Self>;
}

macro_rules! wide {
    ($($number:ty),*) => {$(
        impl Wide for $number {
            fn widened(self) -> i256 {
                i256::from_i128(self.into())
            }

            fn narrowed(wide: i256) -> Option<Self> {
                wide.to_i128()?.try_into().ok()
            }
        }
    )*};
}
wide!(i32, i64, u64, i128);

impl Wide for i256 {
    fn widened(self) -> i256 {
        self
    }

    fn narrowed(wide: i256) -> Option<Self> {
        Some(wide)
    }
}

struct OfFrames<T: ArrowPrimitiveType> {
    sum: i256,
    /// How many values are in the frame.
    count: usize,
    summed: Summed,
    of: PhantomData<fn() -> T>,
}

impl<T: ArrowPrimitiveType> fmt::Debug for OfFrames<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfFrames").field("sum", &self.sum).field("count", &self.count).finish_non_exhaustive()
    }
}

impl<T: ArrowNumericType<Native: Wide> + Send> OfFrames<T> {
    fn of_values(&self, values: &PrimitiveArray<T>) -> Result<i256> {
        let mut of_values = values.iter().flatten();
        let sum = of_values.try_fold(i256::ZERO, |sum, value| sum.checked_add(value.widened()));
        sum.ok_or_else(|| self.summed.exceeds())
    }
}

impl<T: ArrowNumericType<Native: Wide> + Send> Accumulator for OfFrames<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        let sum = self.sum.checked_add(self.of_values(values)?);
        self.sum = sum.ok_or_else(|| self.summed.exceeds())?;
        self.count += values.len() - values.null_count();
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        let sum = self.sum.checked_sub(self.of_values(values)?);
        self.sum = sum.ok_or_else(|| self.summed.exceeds())?;
        self.count -= values.len() - values.null_count();
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = T::Native::narrowed(self.sum).ok_or_else(|| self.summed.exceeds())?;
        self.summed.value::<T>((self.count > 0).then_some(sum))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.summed.name.capacity()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("the state of a frame that moves")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        not_impl_err!("frames that are put together")
    }
}

/// The sum of the distinct values of a frame that moves.
pub(super) fn of_distinct_frames(args: &AccumulatorArgs) -> Box<dyn Accumulator> {
    Box::new(OfDistinctFrames { counts: HashMap::new(), sum: 0, summed: Summed::of(args) })
}

#[derive(Debug)]
struct OfDistinctFrames {
    /// How often each value is in the frame.
    counts: HashMap<i64, usize>,
    /// No frame has more than all 64-bit numbers.
    sum: i128,
    summed: Summed,
}

impl Accumulator for OfDistinctFrames {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Int64Type>().iter().flatten() {
            let count = self.counts.entry(value).or_default();
            if *count == 0 {
                self.sum += i128::from(value);
            }
            *count += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<Int64Type>().iter().flatten() {
            if let Entry::Occupied(mut count) = self.counts.entry(value) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                    self.sum -= i128::from(value);
                }
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = i64::try_from(self.sum).map_err(|_| self.summed.exceeds())?;
        self.summed.value::<Int64Type>((!self.counts.is_empty()).then_some(sum))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * size_of::<(i64, usize)>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("the state of a frame that moves")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        not_impl_err!("frames that are put together")
    }
}
