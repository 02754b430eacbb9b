//! Sums, averages and extremes of numbers and times.

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, NullBufferBuilder, PrimitiveArray,
};
use datafusion::arrow::datatypes::{ArrowNativeType, DataType, Float64Type};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;

use super::CumulativeWindow;
use super::rows::Rows;
use super::walk::{Until, Walk, walk};
use crate::functions::{exceeds, fits_digits};

/// What values that are not null come to, one after the other.
pub(super) trait Fold: Default + Send {
    /// That of the values.
    type In: ArrowPrimitiveType;
    /// That of what they come to.
    type Out: ArrowPrimitiveType;

    /// Takes one more. Says whether what they come to still fits its type.
    fn add(&mut self, value: <Self::In as ArrowPrimitiveType>::Native) -> bool;

    /// What they have come to; nothing as long as there was none.
    fn value(&self) -> Option<<Self::Out as ArrowPrimitiveType>::Native>;
}

/// A sum.
pub(super) struct Sum<T: ArrowPrimitiveType>(Option<T::Native>);

impl<T: ArrowPrimitiveType> Default for Sum<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: ArrowPrimitiveType<Native: ArrowNativeTypeOp>> Fold for Sum<T> {
    type In = T;
    type Out = T;

    fn add(&mut self, value: T::Native) -> bool {
        let sum = self.0.unwrap_or(T::Native::ZERO).add_checked(value);
        sum.map(|sum| self.0 = Some(sum)).is_ok()
    }

    fn value(&self) -> Option<T::Native> {
        self.0
    }
}

/// An average of floats.
#[derive(Default)]
pub(super) struct Average {
    sum: f64,
    count: u64,
}

impl Fold for Average {
    type In = Float64Type;
    type Out = Float64Type;

    fn add(&mut self, value: f64) -> bool {
        self.sum += value;
        self.count += 1;
        true
    }

    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// The smallest value, or the greatest.
pub(super) struct Extreme<T: ArrowPrimitiveType, const GREATEST: bool>(Option<T::Native>);

impl<T: ArrowPrimitiveType, const GREATEST: bool> Default for Extreme<T, GREATEST> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: ArrowPrimitiveType<Native: ArrowNativeTypeOp>, const GREATEST: bool> Fold for Extreme<T, GREATEST> {
    type In = T;
    type Out = T;

    fn add(&mut self, value: T::Native) -> bool {
        let beats = |best: T::Native| if GREATEST { value.is_gt(best) } else { value.is_lt(best) };
        if self.0.is_none_or(beats) {
            self.0 = Some(value);
        }
        true
    }

    fn value(&self) -> Option<T::Native> {
        self.0
    }
}

/// A window that folds the values of its argument.
pub(super) struct Folded<F> {
    name: String,
    argument: Arc<dyn PhysicalExpr>,
    data_type: DataType,
    until: Until,
    fold: F,
}

impl<F: Fold + 'static> Folded<F> {
    /// One whose values are of `data_type`.
    pub(super) fn window(
        name: &str,
        argument: Arc<dyn PhysicalExpr>,
        data_type: DataType,
        until: Until,
    ) -> Box<dyn CumulativeWindow> {
        Box::new(Self { name: name.to_owned(), argument, data_type, until, fold: F::default() })
    }
}

impl<F: Fold> CumulativeWindow for Folded<F> {
    fn next(&mut self, rows: &Rows<'_>) -> Result<ArrayRef> {
        let count = rows.batch.num_rows();
        let values = self.argument.evaluate(rows.batch)?.into_array(count)?;
        let values = values.as_primitive_opt::<F::In>().ok_or_else(|| {
            internal_datafusion_err!("a window over {} has got {}", F::In::DATA_TYPE, values.data_type())
        })?;
        let (told, valid) = (Vec::with_capacity(count), NullBufferBuilder::new(count));
        let mut folding = Folding { fold: &mut self.fold, values, told, valid, has_exceeded: false };
        walk(rows, self.until, &mut folding)?;
        let Folding { told, mut valid, has_exceeded, .. } = folding;
        let told = PrimitiveArray::<F::Out>::new(told.into(), valid.finish());
        let told = told.with_data_type(self.data_type.clone());
        if has_exceeded || !fits_digits(&told) {
            return Err(exceeds(&self.name, &self.data_type));
        }
        Ok(Arc::new(told))
    }
}

struct Folding<'a, F: Fold> {
    fold: &'a mut F,
    values: &'a PrimitiveArray<F::In>,
    told: Vec<<F::Out as ArrowPrimitiveType>::Native>,
    valid: NullBufferBuilder,
    has_exceeded: bool,
}

impl<F: Fold> Walk for Folding<'_, F> {
    fn begin(&mut self) -> Result<()> {
        *self.fold = F::default();
        Ok(())
    }

    fn add(&mut self, rows: Range<usize>) -> Result<()> {
        for row in rows {
            if self.values.is_valid(row) {
                self.has_exceeded |= !self.fold.add(self.values.value(row));
            }
        }
        Ok(())
    }

    fn tell(&mut self, rows: usize) -> Result<()> {
        let value = self.fold.value();
        match value {
            Some(_) => self.valid.append_n_non_nulls(rows),
            None => self.valid.append_n_nulls(rows),
        }
        self.told.extend(repeat_n(value.unwrap_or_else(|| ArrowNativeType::usize_as(0)), rows));
        Ok(())
    }
}
