//! Scalar functions that make much of little, like `repeat`: what one batch of them may take is bounded.
//!
//! DataFusion evaluates an expression for a whole batch, in memory that nobody counts. `lpad('x', 10000000000)` took
//! all memory of the machine. Here the size of a result is worked out from the arguments before anything is allocated.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, Int64Array, PrimitiveArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, FieldRef, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::{DataFusionError, Result, resources_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use super::point_of_time::NANOS_OF_DAY;
use crate::config::{BlockyardOptions, ByteSize};

/// What the result of one batch may take: a part of the memory limit, within these bounds.
const PART: usize = 8;
const MIN_BYTES: usize = 256 << 20;
const MAX_BYTES: usize = 1 << 30;

/// Days of the shortest month.
const MONTH_DAYS: i64 = 28;

/// How the size of a result follows from the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Size {
    /// A text so many times.
    Repeat,
    /// A text of so many characters.
    Pad,
    /// A text with another in place of each that is found in it.
    Replace,
    /// The numbers or times from one value to another, by steps.
    Series,
    /// A value so many times.
    Elements,
    /// A list of so many elements.
    Resize,
}

impl Size {
    fn of(function: &str) -> Option<Self> {
        Some(match function {
            "repeat" => Self::Repeat,
            "lpad" | "rpad" => Self::Pad,
            "replace" => Self::Replace,
            "range" | "generate_series" => Self::Series,
            "array_repeat" => Self::Elements,
            "array_resize" => Self::Resize,
            _ => return None,
        })
    }

    /// About how many bytes the result takes at least; 0 where the arguments do not tell.
    fn bytes(self, arguments: &[ColumnarValue], rows: usize) -> Result<u128> {
        match (self, arguments) {
            (Self::Repeat, [text, times]) => product(&lengths(text, rows)?, &numbers(times, rows)?),
            (Self::Pad, [_, length, ..]) | (Self::Resize, [_, length, ..]) => {
                Ok(numbers(length, rows)?.into_iter().flatten().map(positive).sum())
            }
            (Self::Replace, [text, from, to]) => {
                let to = lengths(to, rows)?;
                let most: u128 = product(&lengths(text, rows)?, &to)?;
                // Counting takes as long as replacing.
                if most <= MIN_BYTES as u128 { Ok(0) } else { product(&occurrences(text, from, rows)?, &to) }
            }
            (Self::Elements, [value, times]) => {
                let width = match value {
                    ColumnarValue::Scalar(value) => value.size(),
                    ColumnarValue::Array(array) => array.get_array_memory_size() / array.len().max(1),
                };
                let times: u128 = numbers(times, rows)?.into_iter().flatten().map(positive).sum();
                Ok(times * width.max(1) as u128)
            }
            (Self::Series, [end]) => series(&vec![Some(0); rows], &moments(end, rows)?, &vec![Some(1); rows]),
            (Self::Series, [start, end]) => series(&moments(start, rows)?, &moments(end, rows)?, &vec![Some(1); rows]),
            (Self::Series, [start, end, step]) => {
                series(&moments(start, rows)?, &moments(end, rows)?, &moments(step, rows)?)
            }
            _ => Ok(0),
        }
    }
}

fn positive(number: i64) -> u128 {
    u128::try_from(number).unwrap_or(0)
}

fn product(a: &[Option<i64>], b: &[Option<i64>]) -> Result<u128> {
    Ok(a.iter().zip(b).filter_map(|(a, b)| Some(positive((*a)?) * positive((*b)?))).sum())
}

/// Bytes of the values from `start` to `end`.
fn series(start: &[Option<i64>], end: &[Option<i64>], step: &[Option<i64>]) -> Result<u128> {
    let rows = start.iter().zip(end).zip(step);
    let values = rows.filter_map(|((start, end), step)| {
        let (distance, step) = (i128::from((*end)?) - i128::from((*start)?), i128::from((*step)?));
        (step != 0 && distance.signum() == step.signum()).then(|| (distance / step).unsigned_abs())
    });
    Ok(values.sum::<u128>() * size_of::<i64>() as u128)
}

/// A value for each row, as whole numbers.
fn numbers(value: &ColumnarValue, rows: usize) -> Result<Vec<Option<i64>>> {
    of_type::<Int64Type>(value, &DataType::Int64, rows)
}

/// Numbers as they are; times and intervals in nanoseconds.
fn moments(value: &ColumnarValue, rows: usize) -> Result<Vec<Option<i64>>> {
    match value.data_type() {
        DataType::Interval(_) => {
            let interval = DataType::Interval(IntervalUnit::MonthDayNano);
            let intervals = of_type::<IntervalMonthDayNanoType>(value, &interval, rows)?;
            let nanos = |interval: <IntervalMonthDayNanoType as ArrowPrimitiveType>::Native| {
                let days = i64::from(interval.months) * MONTH_DAYS + i64::from(interval.days);
                days.saturating_mul(NANOS_OF_DAY).saturating_add(interval.nanoseconds)
            };
            Ok(intervals.into_iter().map(|interval| interval.map(nanos)).collect())
        }
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => {
            let time = value.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, None), None)?;
            numbers(&time, rows)
        }
        _ => numbers(value, rows),
    }
}

fn of_type<T: ArrowPrimitiveType>(
    value: &ColumnarValue,
    data_type: &DataType,
    rows: usize,
) -> Result<Vec<Option<T::Native>>> {
    let (array, times) = match value {
        ColumnarValue::Scalar(value) => (value.to_array()?, rows),
        ColumnarValue::Array(array) => (Arc::clone(array), 1),
    };
    let array = PrimitiveArray::<T>::from(cast(&array, data_type)?.to_data());
    Ok(std::iter::repeat_n(array.iter(), times).flatten().collect())
}

/// Bytes of the text in each row.
fn lengths(value: &ColumnarValue, rows: usize) -> Result<Vec<Option<i64>>> {
    let (array, times) = match value {
        ColumnarValue::Scalar(value) => (value.to_array()?, rows),
        ColumnarValue::Array(array) => (Arc::clone(array), 1),
    };
    let lengths = cast(&length(&array)?, &DataType::Int64)?;
    let lengths = Int64Array::from(lengths.to_data());
    Ok(std::iter::repeat_n(lengths.iter(), times).flatten().collect())
}

/// How often a text is found in another, in each row.
fn occurrences(text: &ColumnarValue, searched: &ColumnarValue, rows: usize) -> Result<Vec<Option<i64>>> {
    let texts = |value: &ColumnarValue| Ok::<_, DataFusionError>(cast(&value.to_array(rows)?, &DataType::LargeUtf8)?);
    let (texts, searched) = (texts(text)?, texts(searched)?);
    let rows = texts.as_string::<i64>().iter().zip(searched.as_string::<i64>());
    Ok(rows.map(|(text, searched)| Some(text?.matches(searched?).count() as i64)).collect())
}

/// The same functions, of which those that need it are bounded.
pub(crate) fn bounded(functions: Vec<Arc<ScalarUDF>>) -> Vec<Arc<ScalarUDF>> {
    let bounded = |function: Arc<ScalarUDF>| match Size::of(function.name()) {
        Some(size) => Arc::new(ScalarUDF::new_from_impl(Bounded { function, size })),
        None => function,
    };
    functions.into_iter().map(bounded).collect()
}

/// A function with a bound on what it makes of a batch.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    function: Arc<ScalarUDF>,
    size: Size,
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.function.return_type(arguments)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(arguments)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(arguments)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.function.documentation()
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = arguments.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { arguments.number_rows };
        // What cannot be worked out is an error of the function, if it is one.
        let bytes = self.size.bytes(&arguments.args, rows).unwrap_or(0);
        let limit = BlockyardOptions::from_config(&arguments.config_options).memory_limit.bytes();
        let most = (limit / PART).clamp(MIN_BYTES, MAX_BYTES);
        if bytes > most as u128 {
            let bytes = ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX));
            let (name, most) = (self.name(), ByteSize(most));
            return match rows {
                0 | 1 => resources_err!("{name} would make a value of about {bytes}, and may make {most} at once"),
                _ => resources_err!(
                    "{name} would make about {bytes} of one batch of {rows} rows, and may make {most} at once; batches of \
                     fewer rows (datafusion.execution.batch_size) or a higher memory_limit would help"
                ),
            };
        }
        self.function.invoke_with_args(arguments)
    }
}
