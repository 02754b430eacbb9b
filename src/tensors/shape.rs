//! The shape of tensors, and the column that they make: `arrow.fixed_shape_tensor` of Arrow's canonical extensions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, FixedSizeListArray};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, plan_err};

use crate::call::{Argument, Value};

/// Where fields say of which extension type they are, and more of it.
pub(super) const NAME_KEY: &str = "ARROW:extension:name";
pub(super) const METADATA_KEY: &str = "ARROW:extension:metadata";
/// The name of the type.
pub(super) const FIXED_SHAPE_TENSOR: &str = "arrow.fixed_shape_tensor";

/// At least one dimension, none of which is 0, and not more values than a list can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorShape {
    dimensions: Vec<usize>,
    /// Their product.
    size: i32,
}

impl TensorShape {
    /// The shape with these dimensions.
    pub(crate) fn try_new(dimensions: Vec<usize>) -> Result<Self> {
        if dimensions.is_empty() {
            return plan_err!("the shape of a tensor needs at least one dimension");
        }
        if dimensions.contains(&0) {
            return plan_err!("no dimension of a tensor can be 0, got the shape {}", shown(&dimensions));
        }
        match product(&dimensions).and_then(|size| i32::try_from(size).ok()) {
            Some(size) => Ok(Self { dimensions, size }),
            None => plan_err!("a tensor of shape {} has more than {} values", shown(&dimensions), i32::MAX),
        }
    }

    /// Values of a tensor.
    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }

    /// A column of such tensors without nulls. That an element may be null is what other programs expect of the type.
    pub(crate) fn field(&self, name: &str, element: DataType) -> Field {
        let item = Arc::new(Field::new_list_field(element, true));
        let metadata = HashMap::from([
            (NAME_KEY.to_owned(), FIXED_SHAPE_TENSOR.to_owned()),
            (METADATA_KEY.to_owned(), format!("{{\"shape\":{self}}}")),
        ]);
        Field::new(name, DataType::FixedSizeList(item, self.size), false).with_metadata(metadata)
    }

    /// The values of such a column: those of one tensor after the other.
    pub(crate) fn column(&self, values: ArrayRef) -> Result<ArrayRef> {
        let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        Ok(Arc::new(FixedSizeListArray::try_new(item, self.size, values, None)?))
    }
}

/// One value, as in Ray.
impl Default for TensorShape {
    fn default() -> Self {
        Self { dimensions: vec![1], size: 1 }
    }
}

impl fmt::Display for TensorShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.dimensions))
    }
}

/// Dimensions as they are written, which is JSON too.
pub(super) fn shown(dimensions: &[usize]) -> String {
    let dimensions: Vec<_> = dimensions.iter().map(ToString::to_string).collect();
    format!("[{}]", dimensions.join(", "))
}

/// How many values a tensor has, if that is a number at all.
pub(super) fn product(dimensions: &[usize]) -> Option<usize> {
    dimensions.iter().try_fold(1_usize, |product, dimension| product.checked_mul(*dimension))
}

impl Argument for TensorShape {
    const WHAT: &'static str = "a list of whole numbers above 0";

    fn from_value(value: &Value) -> Result<Option<Self>> {
        let Some(values) = value.list() else {
            return Ok(None);
        };
        let dimensions: Option<Vec<usize>> = values.iter().map(usize::from_value).collect::<Result<_>>()?;
        dimensions.map(Self::try_new).transpose()
    }

    fn to_value(&self) -> Result<Value> {
        Ok(Value::List(self.dimensions.iter().map(|dimension| Value::Number(dimension.to_string())).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_no_tensor_are_an_error() {
        for (dimensions, text) in [
            (vec![], "at least one dimension"),
            (vec![3, 0], "no dimension of a tensor can be 0, got the shape [3, 0]"),
            (vec![1 << 16, 1 << 16], "a tensor of shape [65536, 65536] has more than 2147483647 values"),
            (vec![usize::MAX, usize::MAX, 2], "has more than"),
        ] {
            let error = TensorShape::try_new(dimensions).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert_eq!(TensorShape::try_new(vec![2, 3, 4]).unwrap().size(), 24);
        assert_eq!(TensorShape::try_new(vec![1]).unwrap(), TensorShape::default());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let shape = TensorShape::try_new(vec![3, 4]).unwrap();
        assert_eq!(TensorShape::from_value(&shape.to_value().unwrap()).unwrap(), Some(shape));
        for nothing in [Value::Number("3".into()), Value::List(vec![Value::Number("-1".into())])] {
            assert_eq!(TensorShape::from_value(&nothing).unwrap(), None);
        }
        assert!(TensorShape::from_value(&Value::List(vec![Value::Number("0".into())])).is_err());
    }
}
