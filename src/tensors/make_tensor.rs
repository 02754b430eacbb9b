//! `make_tensor(list, [3, 4])`: the lists of a column as tensors of one shape. Nothing is copied.
//!
//! The type of the result has the shape in it, so the dimensions are numbers that are known when a query is planned:
//! `make_tensor(list, 3, 4)`. A list of dimensions, which is a call of a function to DataFusion, is written out so in
//! the statements of [`DataContext::sql`](crate::DataContext::sql).

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

use super::shape::TensorShape;

/// The name of the function.
pub(crate) const MAKE_TENSOR: &str = "make_tensor";

static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let signature = Signature::variadic_any(Volatility::Immutable);
    Arc::new(ScalarUDF::new_from_impl(MakeTensor { signature }))
});

/// What sessions get.
pub(crate) fn scalar_functions() -> Vec<Arc<ScalarUDF>> {
    vec![Arc::clone(&FUNCTION)]
}

/// Lists of numbers or booleans as tensors of a shape. That the lists have as many values, and no nulls, is looked at
/// when the expression is evaluated.
///
/// ```
/// # #[tokio::main] async fn main() -> datafusion::error::Result<()> {
/// use blockyard::prelude::*;
/// use blockyard::tensors::make_tensor;
///
/// let context = DataContext::new()?;
/// let lists = context.sql("SELECT [id, id + 1, id + 2, id + 3] AS l FROM range(10)").await?;
/// let frame = lists.into_dataframe().select(vec![make_tensor(col("l"), &[2, 2]).alias("x")])?;
/// let field = context.from_dataframe(frame).schema().field(0).clone();
/// assert_eq!(field.extension_type_name(), Some("arrow.fixed_shape_tensor"));
/// # Ok(()) }
/// ```
pub fn make_tensor(lists: Expr, shape: &[usize]) -> Expr {
    let dimensions = shape.iter().map(|dimension| lit(*dimension as u64));
    let arguments = std::iter::once(lists).chain(dimensions).collect();
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::clone(&FUNCTION), arguments))
}

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MakeTensor {
    signature: Signature,
}

impl ScalarUDFImpl for MakeTensor {
    fn name(&self) -> &str {
        MAKE_TENSOR
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {MAKE_TENSOR} follows from the values of its arguments")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let Some(lists) = arguments.arg_fields.first() else {
            return plan_err!("{MAKE_TENSOR} needs lists and a shape");
        };
        let shape = shape_of(arguments.scalar_arguments.get(1..).unwrap_or_default())?;
        let element = element_of(lists.data_type(), &shape)?;
        Ok(Arc::new(shape.field(MAKE_TENSOR, element)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let dimensions: Vec<Option<&ScalarValue>> = arguments.args.iter().skip(1).map(scalar).collect();
        let shape = shape_of(&dimensions)?;
        match arguments.args.first() {
            Some(ColumnarValue::Array(lists)) => Ok(ColumnarValue::Array(tensors(lists, &shape)?)),
            Some(ColumnarValue::Scalar(list)) => {
                let one = tensors(&list.to_array()?, &shape)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&one, 0)?))
            }
            None => internal_err!("{MAKE_TENSOR} without arguments"),
        }
    }
}

fn scalar(value: &ColumnarValue) -> Option<&ScalarValue> {
    match value {
        ColumnarValue::Scalar(value) => Some(value),
        ColumnarValue::Array(_) => None,
    }
}

/// The shape with these dimensions, all of which must be known.
fn shape_of(dimensions: &[Option<&ScalarValue>]) -> Result<TensorShape> {
    let dimension = |value: &Option<&ScalarValue>| {
        let whole = match value {
            None => {
                return plan_err!(
                    "the shape of {MAKE_TENSOR} must be whole numbers that are written out, as in {MAKE_TENSOR}(list, 3, 4)"
                );
            }
            Some(value) if value.data_type().is_integer() => value.cast_to(&DataType::Int64)?,
            Some(other) => return plan_err!("the shape of {MAKE_TENSOR} must be whole numbers, got {other}"),
        };
        match whole {
            ScalarValue::Int64(Some(number)) if number >= 0 => Ok(number as usize),
            other => plan_err!("no dimension of a tensor can be {other}"),
        }
    };
    TensorShape::try_new(dimensions.iter().map(dimension).collect::<Result<_>>()?)
}

/// The type of the values of lists.
fn element_of(lists: &DataType, shape: &TensorShape) -> Result<DataType> {
    let element = match lists {
        DataType::FixedSizeList(item, length) => {
            check_length(*length as usize, shape)?;
            item.data_type()
        }
        DataType::List(item) | DataType::LargeList(item) => item.data_type(),
        other => return plan_err!("{MAKE_TENSOR} takes lists of numbers or booleans, got {other}"),
    };
    match element {
        number if number.is_numeric() => Ok(number.clone()),
        DataType::Boolean => Ok(DataType::Boolean),
        _ => plan_err!("{MAKE_TENSOR} takes lists of numbers or booleans, got {lists}"),
    }
}

fn check_length(length: usize, shape: &TensorShape) -> Result<()> {
    match shape.size() {
        size if size == length => Ok(()),
        size => exec_err!("{MAKE_TENSOR}: a list has {length} values, and a tensor of shape {shape} has {size}"),
    }
}

/// The column of tensors that lists make.
fn tensors(lists: &ArrayRef, shape: &TensorShape) -> Result<ArrayRef> {
    if lists.null_count() > 0 {
        return exec_err!("{MAKE_TENSOR}: a list is null, and tensors are not");
    }
    let values = match lists.data_type() {
        DataType::List(_) => values_of(lists.as_list::<i32>(), shape)?,
        DataType::LargeList(_) => values_of(lists.as_list::<i64>(), shape)?,
        DataType::FixedSizeList(_, length) => {
            check_length(*length as usize, shape)?;
            Arc::clone(lists.as_fixed_size_list().values())
        }
        other => return internal_err!("{MAKE_TENSOR} was planned for lists, got {other}"),
    };
    if values.null_count() > 0 {
        return exec_err!("{MAKE_TENSOR}: a list has a null among its values, and tensors have none");
    }
    shape.column(values)
}

/// The values of lists, all of which have as many as a tensor.
fn values_of<O: OffsetSizeTrait>(lists: &GenericListArray<O>, shape: &TensorShape) -> Result<ArrayRef> {
    let offsets = lists.value_offsets();
    for ends in offsets.windows(2) {
        check_length((ends[1] - ends[0]).as_usize(), shape)?;
    }
    let first = offsets.first().map_or(0, |first| first.as_usize());
    Ok(lists.values().slice(first, lists.len() * shape.size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Float32Array, Int32Array, LargeListArray, ListArray};
    use datafusion::arrow::datatypes::{Float32Type, Int32Type};

    fn shape(dimensions: &[usize]) -> TensorShape {
        TensorShape::try_new(dimensions.to_vec()).unwrap()
    }

    fn pairs(rows: i32) -> Vec<Option<Vec<Option<i32>>>> {
        (0..rows).map(|row| Some(vec![Some(row), Some(-row)])).collect()
    }

    #[test]
    fn slices_of_lists_become_the_same_tensors() {
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(pairs(5)));
        let large: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(pairs(5)));
        let fixed = shape(&[2]).column(Arc::clone(lists.as_list::<i32>().values())).unwrap();
        for lists in [lists, large, fixed] {
            let tensors = tensors(&lists.slice(1, 3), &shape(&[1, 2])).unwrap();
            let values = tensors.as_fixed_size_list().values().as_primitive::<Int32Type>().clone();
            assert_eq!(values, Int32Array::from(vec![1, -1, 2, -2, 3, -3]));
            assert_eq!(&element_of(lists.data_type(), &shape(&[2])).unwrap(), values.data_type());
        }
    }

    #[test]
    fn what_is_no_tensor_is_an_error() {
        let of = |rows: Vec<Option<Vec<Option<f32>>>>| -> ArrayRef {
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
        };
        for (rows, text) in [
            (
                vec![Some(vec![Some(1.0); 6]), Some(vec![Some(1.0); 5])],
                "a list has 5 values, and a tensor of shape [2, 3]",
            ),
            (vec![Some(vec![])], "a list has 0 values"),
            (vec![Some(vec![Some(1.0); 6]), None], "a list is null"),
            (vec![Some(vec![None; 6])], "a list has a null among its values"),
        ] {
            let error = tensors(&of(rows), &shape(&[2, 3])).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let words = DataType::new_list(DataType::Utf8, true);
        let error = element_of(&words, &shape(&[2])).unwrap_err().to_string();
        assert!(error.contains("takes lists of numbers or booleans"), "{error}");
        assert!(element_of(&DataType::Float32, &shape(&[2])).is_err());
        // A null before the rows of a slice is not one of theirs.
        let second = of(vec![Some(vec![None; 2]), Some(vec![Some(1.0); 2])]).slice(1, 1);
        let column = tensors(&second, &shape(&[2])).unwrap();
        let values = column.as_fixed_size_list().values().as_primitive::<Float32Type>();
        assert_eq!(values, &Float32Array::from(vec![1.0, 1.0]));
    }

    #[test]
    fn dimensions_are_whole_numbers_that_are_known() {
        let shape_of_values = |values: &[ScalarValue]| {
            shape_of(&values.iter().map(Some).collect::<Vec<_>>()).map(|shape| shape.to_string())
        };
        let int = |number| ScalarValue::Int64(Some(number));
        assert_eq!(shape_of_values(&[int(3), ScalarValue::UInt64(Some(4))]).unwrap(), "[3, 4]");
        for (values, text) in [
            (vec![], "at least one dimension"),
            (vec![int(-1)], "no dimension of a tensor can be -1"),
            (vec![int(0)], "no dimension of a tensor can be 0"),
            (vec![ScalarValue::Float64(Some(1.5))], "must be whole numbers, got 1.5"),
            (vec![ScalarValue::Int64(None)], "no dimension of a tensor can be NULL"),
        ] {
            let error = shape_of_values(&values).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let error = shape_of(&[None]).unwrap_err().to_string();
        assert!(error.contains("make_tensor(list, 3, 4)"), "{error}");
    }
}
