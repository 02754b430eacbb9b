//! Sums of floating-point numbers in a frame that moves.

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::Accumulator;

/// The sum, or mean, of numbers that come at one end and leave at the other, without a subtraction:
///
/// ```text
/// leaving        coming      sum = leaving.last() + of_coming
/// a+b+c  (top)   d e f
///   b+c                      a leaves: b+c is on top; when none is left, what has come is summed from its end
///     c
/// ```
#[derive(Debug)]
pub(crate) struct FrameSum {
    /// Sums of the oldest numbers, each without those above it.
    leaving: Vec<f64>,
    coming: Vec<f64>,
    of_coming: f64,
    is_mean: bool,
}

impl FrameSum {
    pub(crate) fn new(is_mean: bool) -> Self {
        Self { leaving: Vec::new(), coming: Vec::new(), of_coming: 0.0, is_mean }
    }

    fn leave(&mut self) {
        if self.leaving.is_empty() {
            let mut sum = 0.0;
            for value in self.coming.drain(..).rev() {
                sum += value;
                self.leaving.push(sum);
            }
            self.of_coming = 0.0;
        }
        self.leaving.pop();
    }
}

impl Accumulator for FrameSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = cast(&values[0], &DataType::Float64)?;
        for value in values.as_primitive::<Float64Type>().iter().flatten() {
            self.of_coming += value;
            self.coming.push(value);
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        (0..values[0].len() - values[0].logical_null_count()).for_each(|_| self.leave());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let count = self.leaving.len() + self.coming.len();
        let sum = self.leaving.last().copied().unwrap_or_default() + self.of_coming;
        let value = if self.is_mean { sum / count as f64 } else { sum };
        Ok(ScalarValue::Float64((count > 0).then_some(value)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + (self.leaving.capacity() + self.coming.capacity()) * size_of::<f64>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        not_impl_err!("the state of a frame that moves")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        not_impl_err!("frames that are put together")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::Float64Array;

    use super::*;

    #[test]
    fn what_has_left_leaves_no_trace() {
        let numbers = [Some(1e15), Some(1.0), None, Some(f64::INFINITY), Some(2.5), None, Some(3.5), Some(-1.0)];
        for (width, is_mean) in [(1, false), (2, false), (3, true), (5, false)] {
            let mut sum = FrameSum::new(is_mean);
            let array = |value: Option<f64>| vec![Arc::new(Float64Array::from(vec![value])) as ArrayRef];
            for end in 0..numbers.len() {
                sum.update_batch(&array(numbers[end])).unwrap();
                if let Some(gone) = end.checked_sub(width) {
                    sum.retract_batch(&array(numbers[gone])).unwrap();
                }
                let frame: Vec<f64> =
                    numbers[(end + 1).saturating_sub(width)..=end].iter().flatten().copied().collect();
                let of_frame: f64 = frame.iter().rev().sum();
                let of_frame = if is_mean { of_frame / frame.len() as f64 } else { of_frame };
                let expected = (!frame.is_empty()).then_some(of_frame);
                assert_eq!(sum.evaluate().unwrap(), ScalarValue::Float64(expected), "{width} until {end}");
            }
        }
    }
}
