//! Footers without what is not to be believed, and with what the table knows better.
//!
//! - Bounds of floats say nothing of NaN, which is above all other values, or below them where it has a sign; and 0 and
//!   -0, which are equal, are two values to a filter of hashes. So only their nulls are counted.
//! - Bytes that the table has as text are text, of which the decoder then sees whether it is UTF-8.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData;
use datafusion::execution::cache::cache_manager::{CachedFileMetadataEntry, FileMetadataCache};
use datafusion::parquet::arrow::ARROW_SCHEMA_META_KEY;
use datafusion::parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use datafusion::parquet::errors::Result;
use datafusion::parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataBuilder, RowGroupMetaData,
};
use datafusion::parquet::file::page_index::column_index::ColumnIndexMetaData;
use datafusion::parquet::file::statistics::Statistics;
use datafusion::parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type, TypePtr};
use object_store::path::Path;

/// A file's footer as it is in the cache, or was just read, as a read of these columns has to see it.
pub(super) fn believed(
    footer: Arc<ParquetMetaData>,
    columns: &Schema,
    cache: &FileMetadataCache,
    file: &Path,
) -> Result<Arc<ParquetMetaData>> {
    with_texts(remembered(footer, cache, file)?, columns)
}

/// A footer without bounds of floats; whoever gets it from the cache next has it so already.
pub(super) fn remembered(
    footer: Arc<ParquetMetaData>,
    cache: &FileMetadataCache,
    file: &Path,
) -> Result<Arc<ParquetMetaData>> {
    let anew = without_bounds_of_floats(&footer)?;
    if !Arc::ptr_eq(&anew, &footer)
        && let Some(known) = cache.get(file)
        && cached(&known).is_some_and(|known| Arc::ptr_eq(known, &footer))
    {
        let anew = Arc::new(CachedParquetMetaData::new(Arc::clone(&anew)));
        cache.put(file, CachedFileMetadataEntry::new(known.meta, anew));
    }
    Ok(anew)
}

/// The footer that the cache has.
pub(super) fn cached(known: &CachedFileMetadataEntry) -> Option<&Arc<ParquetMetaData>> {
    Some(known.file_metadata.as_any().downcast_ref::<CachedParquetMetaData>()?.parquet_metadata())
}

/// The same footer, whose statistics of floats are only how many nulls there are.
fn without_bounds_of_floats(footer: &Arc<ParquetMetaData>) -> Result<Arc<ParquetMetaData>> {
    let schema = footer.file_metadata().schema_descr();
    let floats: Vec<usize> = (0..schema.num_columns()).filter(|column| is_float(&schema.column(*column))).collect();
    let says_much = |group: &RowGroupMetaData| floats.iter().any(|column| says_bounds(group.column(*column)));
    if !footer.row_groups().iter().any(says_much) {
        return Ok(Arc::clone(footer));
    }
    let mut anew = footer.as_ref().clone().into_builder();
    for group in anew.take_row_groups() {
        let mut columns = group.columns().to_vec();
        for column in &floats {
            columns[*column] = without_bounds(&columns[*column])?;
        }
        anew = anew.add_row_group(group.into_builder().set_column_metadata(columns).build()?);
    }
    let pages = footer.column_index().map(|groups| {
        let mut groups = groups.clone();
        for columns in &mut groups {
            floats.iter().for_each(|column| columns[*column] = ColumnIndexMetaData::NONE);
        }
        groups
    });
    Ok(Arc::new(anew.set_column_index(pages).build()))
}

fn is_float(column: &ColumnDescriptor) -> bool {
    matches!(column.physical_type(), PhysicalType::FLOAT | PhysicalType::DOUBLE)
        || column.logical_type_ref() == Some(&LogicalType::Float16)
}

fn says_bounds(column: &ColumnChunkMetaData) -> bool {
    let has_bounds = |said: &Statistics| said.min_bytes_opt().is_some() || said.max_bytes_opt().is_some();
    column.statistics().is_some_and(has_bounds)
        || column.bloom_filter_offset().is_some()
        || column.column_index_offset().is_some()
}

fn without_bounds(column: &ColumnChunkMetaData) -> Result<ColumnChunkMetaData> {
    let (nulls, kind) = (column.statistics().and_then(Statistics::null_count_opt), column.column_type());
    let anew = column.clone().into_builder();
    let anew = match kind {
        PhysicalType::FLOAT => anew.set_statistics(Statistics::float(None, None, None, nulls, false)),
        PhysicalType::DOUBLE => anew.set_statistics(Statistics::double(None, None, None, nulls, false)),
        _ => anew.set_statistics(Statistics::fixed_len_byte_array(None, None, None, nulls, false)),
    };
    anew.set_bloom_filter_offset(None)
        .set_bloom_filter_length(None)
        .set_column_index_offset(None)
        .set_column_index_length(None)
        .build()
}

/// The same footer, in which bytes are text where these columns have text of their names.
fn with_texts(footer: Arc<ParquetMetaData>, columns: &Schema) -> Result<Arc<ParquetMetaData>> {
    let metadata = footer.file_metadata();
    let root = metadata.schema_descr().root_schema();
    let becomes_text = |field: &TypePtr| {
        let wanted = || columns.field_with_name(field.name()).map(|field| field.data_type());
        is_bytes(field) && matches!(wanted(), Ok(DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View))
    };
    if !root.get_fields().iter().any(becomes_text) {
        return Ok(footer);
    }
    let fields = root.get_fields().iter().map(|field| match becomes_text(field) {
        false => Ok(Arc::clone(field)),
        true => {
            let text = Type::primitive_type_builder(field.name(), PhysicalType::BYTE_ARRAY)
                .with_repetition(field.get_basic_info().repetition())
                .with_logical_type(Some(LogicalType::String));
            Ok(Arc::new(text.build()?))
        }
    });
    let fields = fields.collect::<Result<Vec<_>>>()?;
    let root = Type::group_type_builder(root.name()).with_fields(fields).build()?;
    // What the writer had them as is bytes.
    let said = metadata.key_value_metadata().cloned();
    let said = said.map(|said| said.into_iter().filter(|said| said.key != ARROW_SCHEMA_META_KEY).collect());
    let metadata = FileMetaData::new(
        metadata.version(),
        metadata.num_rows(),
        metadata.created_by().map(str::to_owned),
        said,
        Arc::new(SchemaDescriptor::new(Arc::new(root))),
        metadata.column_orders().cloned(),
    );
    let anew = ParquetMetaDataBuilder::new(metadata)
        .set_row_groups(footer.row_groups().to_vec())
        .set_column_index(footer.column_index().cloned())
        .set_offset_index(footer.offset_index().cloned());
    Ok(Arc::new(anew.build()))
}

/// Whether a column is bytes of which the file says no more.
fn is_bytes(field: &Type) -> bool {
    field.is_primitive()
        && field.get_physical_type() == PhysicalType::BYTE_ARRAY
        && field.get_basic_info().logical_type_ref().is_none()
        && field.get_basic_info().converted_type() == ConvertedType::NONE
}
