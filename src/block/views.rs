//! String and binary views keep all buffers that they were made from. Before they are stored or counted, what they
//! refer to is copied.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, StructArray,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::Result;

/// The same rows, in which views, nested ones too, have only the bytes that they refer to.
pub(crate) fn compact_views(batch: &RecordBatch) -> Result<RecordBatch> {
    if !batch.schema_ref().fields().iter().any(|field| has_views(field.data_type())) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(compact).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

/// Whether a type is, or holds, a view.
pub(crate) fn has_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_views(item.data_type()),
        _ => false,
    }
}

/// The same columns with plain strings and bytes in place of views, and with values in place of dictionaries, of which
/// each slice keeps the whole. Nested ones too.
pub(crate) fn with_plain_types(schema: &Schema) -> Schema {
    let fields: Vec<FieldRef> = schema.fields().iter().map(plain_field).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn plain_field(field: &FieldRef) -> FieldRef {
    match plain_type(field.data_type()) {
        plain if plain == *field.data_type() => Arc::clone(field),
        plain => Arc::new(field.as_ref().clone().with_data_type(plain)),
    }
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        DataType::List(item) => DataType::List(plain_field(item)),
        DataType::LargeList(item) => DataType::LargeList(plain_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(plain_field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(plain_field(entries), *sorted),
        other => other.clone(),
    }
}

fn compact(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        other if !has_views(other) => Arc::clone(array),
        DataType::Struct(_) => Arc::new(compact_struct(array.as_struct())?),
        DataType::List(item) => compact_list(array.as_list::<i32>(), item)?,
        DataType::LargeList(item) => compact_list(array.as_list::<i64>(), item)?,
        DataType::FixedSizeList(item, size) => {
            let list = array.as_fixed_size_list();
            let values = compact(list.values())?;
            let field = Arc::clone(item);
            Arc::new(FixedSizeListArray::try_new_with_length(field, *size, values, list.nulls().cloned(), list.len())?)
        }
        DataType::Map(entries, sorted) => {
            let map = array.as_map();
            let (first, offsets) = from_zero(map.offsets());
            let used = map.entries().slice(first, offsets.last().map_or(0, |last| *last as usize));
            let (field, nulls) = (Arc::clone(entries), map.nulls().cloned());
            Arc::new(MapArray::try_new(field, offsets, compact_struct(&used)?, nulls, *sorted)?)
        }
        _ => Arc::clone(array),
    })
}

fn compact_struct(array: &StructArray) -> Result<StructArray> {
    let columns = array.columns().iter().map(compact).collect::<Result<_>>()?;
    Ok(StructArray::try_new_with_length(array.fields().clone(), columns, array.nulls().cloned(), array.len())?)
}

fn compact_list<O: OffsetSizeTrait>(list: &GenericListArray<O>, item: &FieldRef) -> Result<ArrayRef> {
    let (first, offsets) = from_zero(list.offsets());
    let used = list.values().slice(first, offsets.last().map_or(0, |last| last.as_usize()));
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(item), offsets, compact(&used)?, list.nulls().cloned())?))
}

/// Where the values begin, and the offsets from there.
fn from_zero<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> (usize, OffsetBuffer<O>) {
    let first = offsets.first().copied().unwrap_or_default();
    (first.as_usize(), OffsetBuffer::new(offsets.iter().map(|offset| *offset - first).collect::<Vec<_>>().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ListBuilder, MapBuilder, StringViewArray, StringViewBuilder};

    #[test]
    fn nested_views_keep_only_what_they_refer_to() {
        let long = |i: i32| format!("a text that does not fit into the view itself, number {i}");
        let mut lists = ListBuilder::new(StringViewBuilder::new());
        let mut maps = MapBuilder::new(None, StringViewBuilder::new(), StringViewBuilder::new());
        for i in 0..10_000 {
            lists.values().append_value(long(i));
            lists.values().append_null();
            lists.append(i % 7 != 0);
            maps.keys().append_value(long(i));
            maps.values().append_value(long(-i));
            maps.append(true).unwrap();
        }
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..10_000).map(long)));
        let nested = StructArray::try_from(vec![("v", Arc::clone(&views))]).unwrap();
        let columns: [(&str, ArrayRef); 4] =
            [("l", Arc::new(lists.finish())), ("m", Arc::new(maps.finish())), ("v", views), ("s", Arc::new(nested))];
        let slice = RecordBatch::try_from_iter(columns).unwrap().slice(1000, 20);
        let compacted = compact_views(&slice).unwrap();
        assert_eq!(compacted, slice);
        assert!(compacted.get_array_memory_size() < 40_000, "{}", compacted.get_array_memory_size());
    }
}
