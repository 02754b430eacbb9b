//! Columns of a batch as arrays of `ndarray`.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{
    ArrowNativeTypeOp, ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::{Result, exec_datafusion_err, exec_err, not_impl_err};
use ndarray::{Array2, ArrayView1, ArrayViewD, IxDyn, aview1};

use super::column::TensorColumn;
use crate::error::unknown_name;

/// Numbers that stand in columns as they stand in arrays.
pub trait TensorElement: ArrowNativeTypeOp {
    /// The type of such columns.
    type Arrow: ArrowPrimitiveType<Native = Self>;
}

macro_rules! elements {
    ($($native:ty: $arrow:ident),* $(,)?) => {
        $(impl TensorElement for $native {
            type Arrow = $arrow;
        })*
    };
}

elements! {
    i8: Int8Type,
    i16: Int16Type,
    i32: Int32Type,
    i64: Int64Type,
    u8: UInt8Type,
    u16: UInt16Type,
    u32: UInt32Type,
    u64: UInt64Type,
    f32: Float32Type,
    f64: Float64Type,
}

/// Columns of a batch as arrays. The first axis is the rows.
///
/// ```
/// # #[tokio::main] async fn main() -> datafusion::error::Result<()> {
/// use blockyard::prelude::*;
/// use blockyard::tensors::TensorBatch;
///
/// let context = DataContext::new()?;
/// let batch = context.range_tensor(100, [3, 4])?.take_batch(10).await?;
/// let tensors = batch.tensor::<i64>("data")?;
/// assert_eq!(tensors.shape(), [10, 3, 4]);
/// assert_eq!(tensors[[7, 2, 3]], 7);
/// # Ok(()) }
/// ```
pub trait TensorBatch {
    /// A column of tensors: an array of rows and their dimensions. Lists of a fixed size without a shape have one
    /// dimension. Nothing is copied.
    ///
    /// # Errors
    ///
    /// Where there is no such column, it has no tensors of `T`, a value is null, or the dimensions are meant in another
    /// order than they stand in memory.
    fn tensor<T: TensorElement>(&self, column: &str) -> Result<ArrayViewD<'_, T>>;

    /// A column of numbers. Nothing is copied.
    ///
    /// # Errors
    ///
    /// Where there is no such column, it is not of `T`, or a value is null.
    fn vector<T: TensorElement>(&self, column: &str) -> Result<ArrayView1<'_, T>>;

    /// Columns of numbers or booleans beside each other: an array of rows and columns. The values are copied, and cast
    /// as `CAST` does where a column is of another type.
    ///
    /// # Errors
    ///
    /// Where there is no such column, it has no numbers, a value is null, or a number does not fit into `T`.
    fn matrix<T: TensorElement>(&self, columns: &[&str]) -> Result<Array2<T>>;
}

impl TensorBatch for RecordBatch {
    fn tensor<T: TensorElement>(&self, column: &str) -> Result<ArrayViewD<'_, T>> {
        let (field, array) = find(self, column)?;
        let Some(lists) = array.as_fixed_size_list_opt() else {
            return exec_err!(
                "column '{column}' has no tensors, it is {}; make_tensor makes tensors of lists",
                array.data_type()
            );
        };
        let shape = match TensorColumn::of(field)? {
            Some(tensor) if tensor.permutation.is_some() => {
                return not_impl_err!("tensors with another order of dimensions; column '{column}' has {tensor}");
            }
            Some(tensor) => tensor.shape,
            None => vec![lists.value_length() as usize],
        };
        check_no_nulls(column, lists)?;
        let values = values_of::<T>(column, lists.values())?;
        let dimensions = [vec![self.num_rows()], shape].concat();
        ArrayViewD::from_shape(IxDyn(&dimensions), values).map_err(|e| exec_datafusion_err!("column '{column}': {e}"))
    }

    fn vector<T: TensorElement>(&self, column: &str) -> Result<ArrayView1<'_, T>> {
        let (_, array) = find(self, column)?;
        Ok(aview1(values_of::<T>(column, array)?))
    }

    fn matrix<T: TensorElement>(&self, columns: &[&str]) -> Result<Array2<T>> {
        let (rows, width) = (self.num_rows(), columns.len());
        let mut values = vec![T::default(); rows * width];
        for (place, column) in columns.iter().enumerate() {
            let (_, array) = find(self, column)?;
            for (row, number) in cast_numbers::<T>(column, array)?.values().iter().enumerate() {
                values[row * width + place] = *number;
            }
        }
        Array2::from_shape_vec((rows, width), values).map_err(|e| exec_datafusion_err!("{rows} x {width} numbers: {e}"))
    }
}

/// The column of this name.
fn find<'a>(batch: &'a RecordBatch, column: &str) -> Result<(&'a Field, &'a ArrayRef)> {
    let fields = batch.schema_ref().fields();
    match fields.iter().position(|field| field.name() == column) {
        Some(index) => Ok((fields[index].as_ref(), batch.column(index))),
        None => {
            let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
            Err(unknown_name("column", column, "the batch", &names))
        }
    }
}

/// The numbers of a column as they stand in memory.
fn values_of<'a, T: TensorElement>(column: &str, array: &'a ArrayRef) -> Result<&'a [T]> {
    let Some(numbers) = array.as_primitive_opt::<T::Arrow>() else {
        return exec_err!("column '{column}' has values of {}, and {} was asked for", array.data_type(), asked::<T>());
    };
    check_no_nulls(column, numbers)?;
    Ok(numbers.values())
}

/// The numbers of a column of any type of numbers.
fn cast_numbers<T: TensorElement>(column: &str, array: &ArrayRef) -> Result<PrimitiveArray<T::Arrow>> {
    let is_number = array.data_type().is_numeric() || *array.data_type() == DataType::Boolean;
    if !is_number {
        return exec_err!(
            "column '{column}' has no numbers, it is {}; {} was asked for",
            array.data_type(),
            asked::<T>()
        );
    }
    check_no_nulls(column, array)?;
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let numbers = cast_with_options(array, &asked::<T>(), &options);
    let numbers = numbers.map_err(|e| exec_datafusion_err!("column '{column}': {e}"))?;
    Ok(numbers.as_primitive::<T::Arrow>().clone())
}

/// The type of columns of `T`.
fn asked<T: TensorElement>() -> DataType {
    <T::Arrow as ArrowPrimitiveType>::DATA_TYPE
}

fn check_no_nulls(column: &str, array: &dyn Array) -> Result<()> {
    match array.null_count() {
        0 => Ok(()),
        nulls => exec_err!("column '{column}' has {nulls} nulls, which arrays cannot have; fill them or drop the rows"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tensors::TensorShape;
    use datafusion::arrow::array::{BooleanArray, Float64Array, Int32Array, StringArray};
    use datafusion::arrow::datatypes::Schema;
    use ndarray::array;

    /// Rows of which number r has the values 6r .. 6r + 6 in tensors of this metadata.
    fn batch(metadata: Option<&str>) -> RecordBatch {
        let shape = TensorShape::try_new(vec![2, 3]).unwrap();
        let mut field = shape.field("x", DataType::Int32);
        match metadata {
            Some(text) => drop(field.metadata_mut().insert("ARROW:extension:metadata".to_owned(), text.to_owned())),
            None => field.metadata_mut().clear(),
        }
        let tensors = shape.column(Arc::new(Int32Array::from_iter_values(0..24))).unwrap();
        let columns: [(Field, ArrayRef); 5] = [
            (field, tensors),
            (Field::new("f", DataType::Float64, false), Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5, -3.5]))),
            (Field::new("n", DataType::Int32, true), Arc::new(Int32Array::from(vec![None, Some(1), Some(2), Some(3)]))),
            (Field::new("b", DataType::Boolean, false), Arc::new(BooleanArray::from(vec![true, false, true, true]))),
            (Field::new("s", DataType::Utf8, false), Arc::new(StringArray::from(vec!["a", "b", "c", "d"]))),
        ];
        let (fields, columns): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    }

    #[test]
    fn columns_of_slices_are_views() {
        let whole = batch(Some(r#"{"shape":[2,3]}"#));
        let slice = whole.slice(1, 2);
        let tensors = slice.tensor::<i32>("x").unwrap();
        assert_eq!(tensors.shape(), [2, 2, 3]);
        assert_eq!(tensors.index_axis(ndarray::Axis(0), 1), array![[12, 13, 14], [15, 16, 17]].into_dyn());
        let values = whole.column(0).as_fixed_size_list().values().as_primitive::<Int32Type>();
        assert!(std::ptr::eq(tensors.as_ptr(), &values.values()[6]));
        assert_eq!(slice.vector::<f64>("f").unwrap(), array![1.5, 2.5]);
        // The null is before the slice.
        assert_eq!(slice.vector::<i32>("n").unwrap(), array![1, 2]);
        assert_eq!(slice.matrix::<f32>(&["b", "f", "n"]).unwrap(), array![[0.0, 1.5, 1.0], [1.0, 2.5, 2.0]]);
        assert_eq!(whole.slice(0, 0).tensor::<i32>("x").unwrap().shape(), [0, 2, 3]);
        let without = batch(None);
        assert_eq!(without.tensor::<i32>("x").unwrap().shape(), [4, 6]);
        assert_eq!(without.matrix::<u8>(&[]).unwrap().shape(), [4, 0]);
    }

    #[test]
    fn what_cannot_be_viewed_is_an_error() {
        let permuted = batch(Some(r#"{"shape":[2,3],"permutation":[1,0]}"#));
        for (error, text) in [
            (permuted.tensor::<i32>("x").unwrap_err(), "column 'x' has [2, 3] in the order [1, 0]"),
            (permuted.tensor::<i32>("f").unwrap_err(), "column 'f' has no tensors, it is Float64"),
            (permuted.vector::<f32>("f").unwrap_err(), "column 'f' has values of Float64, and Float32 was asked for"),
            (permuted.vector::<i32>("n").unwrap_err(), "column 'n' has 1 nulls"),
            (permuted.vector::<i32>("nn").unwrap_err(), "unknown column 'nn' of the batch. Did you mean 'n'?"),
            (permuted.matrix::<f64>(&["f", "n"]).unwrap_err(), "column 'n' has 1 nulls"),
            (
                permuted.matrix::<f64>(&["s"]).unwrap_err(),
                "column 's' has no numbers, it is Utf8; Float64 was asked for",
            ),
            (permuted.matrix::<u8>(&["f"]).unwrap_err(), "column 'f': "),
        ] {
            assert!(error.to_string().contains(text), "{error}");
        }
        let tensors = batch(Some(r#"{"shape":[3,2]}"#));
        let error = tensors.tensor::<f32>("x").unwrap_err().to_string();
        assert!(error.contains("column 'x' has values of Int32, and Float32 was asked for"), "{error}");
    }
}
