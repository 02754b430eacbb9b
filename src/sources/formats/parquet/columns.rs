//! What footers say of columns, and whether these fit those of a table.

use datafusion::arrow::datatypes::{DataType, Schema};
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
        // The decoder sees whether bytes are text.
        let is_bytes = matches!(field.data_type(), DataType::Binary | DataType::LargeBinary | DataType::BinaryView);
        let is_decoded = is_bytes && wanted.data_type().is_string();
        if !is_decoded && !fits(field.data_type(), wanted.data_type()) {
            return plan_err!(
                "column '{}' is {} here, but {} in the table",
                field.name(),
                field.data_type(),
                wanted.data_type()
            );
        }
    }
    Ok(())
}
