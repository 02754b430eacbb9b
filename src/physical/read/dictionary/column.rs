//! Columns of the table in files.

use std::collections::HashMap;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels, parquet_to_arrow_schema};
use datafusion::parquet::errors::Result;
use datafusion::parquet::file::metadata::ParquetMetaData;

use super::super::footer::is_alike;

/// A column of a file that has the values of one of the table.
pub(super) struct FileColumn {
    /// Among the columns of the file.
    pub(super) number: usize,
    /// Whether values of the file may be null.
    pub(super) is_nullable: bool,
    /// What the decoder gives of it.
    pub(super) levels: FieldLevels,
    data_type: DataType,
}

/// The columns of a file.
pub(super) struct FileColumns<'a> {
    metadata: &'a ParquetMetaData,
    schema: Schema,
}

impl<'a> FileColumns<'a> {
    pub(super) fn of(metadata: &'a ParquetMetaData) -> Result<Self> {
        let file = metadata.file_metadata();
        let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())?;
        Ok(Self { metadata, schema })
    }

    /// Those that have the values of some columns of the table, by their numbers there.
    pub(super) fn get_all(&self, table: &Schema, columns: impl Iterator<Item = usize>) -> HashMap<usize, FileColumn> {
        columns.filter_map(|column| Some((column, self.get(table.field(column))?))).collect()
    }

    /// The one that has the values of `field`. `None` where there is none of its name, or it has others within it.
    fn get(&self, field: &Field) -> Option<FileColumn> {
        let columns = self.metadata.file_metadata().schema_descr();
        let is_named = |number: &usize| columns.get_column_root(*number).name() == field.name();
        let number = (0..columns.num_columns()).find(is_named)?;
        let column = columns.column(number);
        let is_plain = columns.get_column_root(number).is_primitive() && column.max_rep_level() == 0;
        if !is_plain || column.max_def_level() > 1 {
            return None;
        }
        let mask = ProjectionMask::leaves(columns, [number]);
        let levels = parquet_to_arrow_field_levels(columns, mask, Some(self.schema.fields())).ok()?;
        let (is_nullable, data_type) = (column.max_def_level() == 1, field.data_type().clone());
        Some(FileColumn { number, is_nullable, levels, data_type })
    }
}

impl FileColumn {
    /// Values of the file as those of the table. `None` where they are of another type.
    pub(super) fn as_in_table(&self, values: ArrayRef) -> Option<ArrayRef> {
        match values.data_type() {
            found if *found == self.data_type => Some(values),
            found if is_alike(found, &self.data_type) => cast(&values, &self.data_type).ok(),
            _ => None,
        }
    }
}
