//! What the field of a column says of its tensors.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use datafusion::common::{Result, plan_err};
use serde::Deserialize;

use super::shape::{FIXED_SHAPE_TENSOR, METADATA_KEY, NAME_KEY, product, shown};

/// The tensors of a column, which others may have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorColumn {
    /// As the values stand in memory, the last dimension first to change.
    pub(super) shape: Vec<usize>,
    /// In which order the dimensions are meant, where that is another one.
    pub(super) permutation: Option<Vec<usize>>,
}

/// The metadata of the type, without the names of dimensions.
#[derive(Deserialize)]
struct Metadata {
    shape: Vec<usize>,
    // Some writers have the plural.
    #[serde(default, alias = "permutations")]
    permutation: Option<Vec<usize>>,
}

impl TensorColumn {
    /// The tensors of a field. `None` where it is of another type, an error where it is said to have tensors that its
    /// lists are not.
    pub(super) fn of(field: &Field) -> Result<Option<Self>> {
        if field.extension_type_name() != Some(FIXED_SHAPE_TENSOR) {
            return Ok(None);
        }
        let (name, text) = (field.name(), field.extension_type_metadata().unwrap_or_default());
        let Metadata { shape, permutation } = match serde_json::from_str(text) {
            Ok(metadata) => metadata,
            Err(e) => return plan_err!("column '{name}' has tensors, whose shape cannot be read from '{text}': {e}"),
        };
        let has_size = |length: i32| product(&shape).is_some_and(|size| usize::try_from(length) == Ok(size));
        match field.data_type() {
            DataType::FixedSizeList(_, length) if has_size(*length) => {}
            other => {
                return plan_err!("column '{name}' is said to have tensors of shape {}, but is {other}", shown(&shape));
            }
        }
        let permutation = permutation.filter(|order| !order.iter().copied().eq(0..shape.len()));
        Ok(Some(Self { shape, permutation }))
    }
}

impl fmt::Display for TensorColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.shape))?;
        self.permutation.as_ref().map_or(Ok(()), |order| write!(f, " in the order {}", shown(order)))
    }
}

/// Fails where the rows of columns that become one have tensors of different shapes, of which one would be said of all.
pub(crate) fn check_same_tensors<'a>(columns: impl IntoIterator<Item = &'a FieldRef>) -> Result<()> {
    let mut known: Option<TensorColumn> = None;
    for field in columns {
        let Ok(Some(found)) = TensorColumn::of(field) else {
            continue;
        };
        match known {
            Some(known) if known != found => {
                return plan_err!("column '{}' has tensors of shape {known} and of shape {found}", field.name());
            }
            _ => known = Some(found),
        }
    }
    Ok(())
}

/// The columns of `schema`, which are tensors where the columns of `written` with their names and types are.
pub(crate) fn with_tensors_of(schema: Schema, written: &Schema) -> Schema {
    let is_tensor = |field: &&FieldRef| matches!(TensorColumn::of(field), Ok(Some(_)));
    let tensors: HashMap<&str, &FieldRef> =
        written.fields().iter().filter(is_tensor).map(|field| (field.name().as_str(), field)).collect();
    if tensors.is_empty() {
        return schema;
    }
    let said = |field: &FieldRef| {
        let Some(tensor) = tensors.get(field.name().as_str()).filter(|t| t.data_type() == field.data_type()) else {
            return Arc::clone(field);
        };
        let of_type = |(key, _): &(&String, &String)| [NAME_KEY, METADATA_KEY].contains(&key.as_str());
        let metadata = field.metadata().iter().chain(tensor.metadata().iter().filter(of_type));
        let metadata = metadata.map(|(key, value)| (key.clone(), value.clone())).collect();
        Arc::new(field.as_ref().clone().with_metadata(metadata))
    };
    let fields: Fields = schema.fields().iter().map(said).collect();
    Schema::new_with_metadata(fields, schema.metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::TensorShape;

    fn field(metadata: &str, length: i32) -> Field {
        let item = Arc::new(Field::new_list_field(DataType::Int64, true));
        let metadata = [(NAME_KEY, FIXED_SHAPE_TENSOR), (METADATA_KEY, metadata)];
        Field::new("x", DataType::FixedSizeList(item, length), false)
            .with_metadata(metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    #[test]
    fn fields_say_their_shapes() {
        let shape = TensorShape::try_new(vec![3, 4]).unwrap();
        let ours = TensorColumn::of(&shape.field("x", DataType::Float32)).unwrap().unwrap();
        assert_eq!(ours, TensorColumn { shape: vec![3, 4], permutation: None });
        for same in [
            r#"{"shape":[3,4],"dim_names":["a","b"]}"#,
            r#"{ "shape": [3, 4], "permutation": [0, 1] }"#,
            r#"{"shape":[3,4],"dim_names":null,"permutations":null}"#,
        ] {
            assert_eq!(TensorColumn::of(&field(same, 12)).unwrap(), Some(ours.clone()), "{same}");
        }
        let permuted = TensorColumn::of(&field(r#"{"shape":[3,4],"permutation":[1,0]}"#, 12)).unwrap().unwrap();
        assert_eq!(permuted.to_string(), "[3, 4] in the order [1, 0]");
        assert_eq!(TensorColumn::of(&Field::new("x", DataType::Int64, false)).unwrap(), None);
        for (metadata, text) in [
            ("", "whose shape cannot be read from ''"),
            (r#"{"shape":[-1]}"#, "cannot be read"),
            (r#"{"shape":[3,5]}"#, "is said to have tensors of shape [3, 5], but is FixedSizeList"),
        ] {
            let error = TensorColumn::of(&field(metadata, 12)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn columns_that_become_one_have_one_shape() {
        let of = |dimensions: &[usize]| {
            Arc::new(TensorShape::try_new(dimensions.to_vec()).unwrap().field("x", DataType::Int64))
        };
        let list: FieldRef = Arc::new(Field::new("x", of(&[12]).data_type().clone(), false));
        check_same_tensors([&of(&[3, 4]), &list, &of(&[3, 4])]).unwrap();
        let error = check_same_tensors([&list, &of(&[3, 4]), &of(&[2, 6])]).unwrap_err().to_string();
        assert!(error.contains("column 'x' has tensors of shape [3, 4] and of shape [2, 6]"), "{error}");
    }

    #[test]
    fn only_what_is_said_of_tensors_is_taken_over() {
        let tensor = TensorShape::try_new(vec![3, 4]).unwrap().field("x", DataType::Int64);
        let plain = Field::new("x", tensor.data_type().clone(), true);
        let uuid = Field::new("y", DataType::FixedSizeBinary(16), true);
        let written = Schema::new(vec![
            tensor.clone(),
            uuid.clone().with_metadata([(NAME_KEY.to_owned(), "arrow.uuid".to_owned())].into()),
        ]);
        let told = with_tensors_of(Schema::new(vec![uuid, plain]), &written);
        assert!(told.field(0).metadata().is_empty());
        assert_eq!(told.field(1), &tensor.with_nullable(true));
        let other = Schema::new(vec![Field::new("x", DataType::Int64, true)]);
        assert_eq!(with_tensors_of(other.clone(), &written), other);
    }
}
