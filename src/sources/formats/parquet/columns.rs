//! What footers say of columns, and whether these fit those of a table.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::{Result, plan_err};
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::file::metadata::ParquetMetaData;

use crate::sources::files::{fits, missing_fields, twice};
use crate::tensors::check_same_tensors;

/// The names of the columns, some of which may be there twice.
pub(super) fn column_names(footer: &ParquetMetaData) -> Vec<&str> {
    let root = footer.file_metadata().schema_descr().root_schema();
    root.get_fields().iter().map(|field| field.name()).collect()
}

/// The columns as the writer had them, where it has said so.
pub(super) fn arrow_schema(footer: &ParquetMetaData) -> Result<Schema> {
    let metadata = footer.file_metadata();
    Ok(parquet_to_arrow_schema(metadata.schema_descr(), metadata.key_value_metadata())?)
}

/// The columns, and fields of columns, that a table does not have.
pub(super) fn left_out(table: &Schema, footer: &ParquetMetaData) -> Vec<String> {
    let root = footer.file_metadata().schema_descr().root_schema();
    match root.get_fields().iter().any(|field| field.is_group()) {
        true => arrow_schema(footer).map(|file| missing_fields(table.fields(), file.fields())).unwrap_or_default(),
        false => {
            let is_left_out = |name: &&str| table.column_with_name(name).is_none();
            column_names(footer).into_iter().filter(is_left_out).map(str::to_owned).collect()
        }
    }
}

/// A file whose values would have to be changed to fit the columns of the table is an error.
pub(super) fn check_types(expected: &Schema, footer: &ParquetMetaData) -> Result<()> {
    if let Some(name) = twice(&column_names(footer)).into_iter().find(|n| expected.field_with_name(n).is_ok()) {
        return plan_err!("there are two columns '{name}' here, and one in the table");
    }
    for field in arrow_schema(footer)?.fields() {
        let Some((_, wanted)) = expected.fields().find(field.name()) else {
            continue;
        };
        check_same_tensors([wanted, field])?;
        if !fits(&with_texts(field.data_type(), wanted.data_type()), wanted.data_type()) {
            return plan_err!(
                "column '{}' is {} here, but {} in the table, as of the first file; schema => 'union' reads both if a \
                 type has room for both",
                field.name(),
                field.data_type(),
                wanted.data_type()
            );
        }
    }
    Ok(())
}

/// The type of a file with texts in the place of bytes that are to be such: the decoder sees whether they are.
fn with_texts(file: &DataType, wanted: &DataType) -> DataType {
    let field = |file: &FieldRef, wanted: &FieldRef| {
        let kind = with_texts(file.data_type(), wanted.data_type());
        Arc::new(file.as_ref().clone().with_data_type(kind))
    };
    match (file, wanted) {
        (DataType::Binary | DataType::LargeBinary | DataType::BinaryView, wanted) if wanted.is_string() => {
            wanted.clone()
        }
        (DataType::Struct(fields), DataType::Struct(others)) => {
            let of_both =
                |one: &FieldRef| others.find(one.name()).map_or(Arc::clone(one), |(_, other)| field(one, other));
            DataType::Struct(fields.iter().map(of_both).collect())
        }
        (DataType::List(item), DataType::List(other)) => DataType::List(field(item, other)),
        (DataType::LargeList(item), DataType::LargeList(other)) => DataType::LargeList(field(item, other)),
        (DataType::Map(item, sorted), DataType::Map(other, _)) => DataType::Map(field(item, other), *sorted),
        (file, _) => file.clone(),
    }
}
