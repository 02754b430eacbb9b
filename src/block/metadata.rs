//! What is known of a block without its rows.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, MAX_INLINE_VIEW_LEN, RecordBatch};
use datafusion::arrow::datatypes::DataType;

/// Size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockMetadata {
    /// Number of rows.
    pub num_rows: usize,
    /// Bytes of the rows themselves, whatever larger buffers they are slices of.
    pub size_bytes: usize,
}

impl BlockMetadata {
    pub(crate) fn of(batches: &[RecordBatch]) -> Self {
        Self {
            num_rows: batches.iter().map(RecordBatch::num_rows).sum(),
            size_bytes: batches.iter().map(sliced_bytes).sum(),
        }
    }
}

/// Bytes that the rows of a batch take, counting only the slice of each buffer that they use.
pub(crate) fn sliced_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| array_bytes(column.as_ref())).sum()
}

/// As arrow's `get_slice_memory_size`, but of the values of lists and of views only what the rows refer to.
fn array_bytes(array: &dyn Array) -> usize {
    let nulls = array.nulls().map_or(0, |nulls| nulls.len().div_ceil(8));
    if let Some(width) = array.data_type().primitive_width() {
        return nulls + width * array.len();
    }
    let range = |first: usize, last: usize, values: &ArrayRef| array_bytes(values.slice(first, last - first).as_ref());
    let ends =
        |offsets: &[i32]| (offsets.first().map_or(0, |o| *o as usize), offsets.last().map_or(0, |o| *o as usize));
    match array.data_type() {
        DataType::Utf8 => nulls + text_bytes(array.as_string::<i32>().offsets()),
        DataType::Binary => nulls + text_bytes(array.as_binary::<i32>().offsets()),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (first, last) = ends(list.value_offsets());
            nulls + size_of_val(list.value_offsets()) + range(first, last, list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let offsets = list.value_offsets();
            let (first, last) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
            nulls + size_of_val(offsets) + range(first as usize, last as usize, list.values())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let (first, last) = ends(map.value_offsets());
            let entries: ArrayRef = Arc::new(map.entries().clone());
            nulls + size_of_val(map.value_offsets()) + range(first, last, &entries)
        }
        DataType::FixedSizeList(..) => nulls + array_bytes(array.as_fixed_size_list().values().as_ref()),
        DataType::Struct(_) => {
            nulls + array.as_struct().columns().iter().map(|column| array_bytes(column.as_ref())).sum::<usize>()
        }
        DataType::Utf8View => nulls + view_bytes(array.as_string_view().views()),
        DataType::BinaryView => nulls + view_bytes(array.as_binary_view().views()),
        _ => array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
    }
}

/// Offsets, and what is between the first and the last.
fn text_bytes(offsets: &[i32]) -> usize {
    let texts = offsets.last().zip(offsets.first()).map_or(0, |(last, first)| last - first);
    size_of_val(offsets) + texts as usize
}

/// Views, and the texts that are too long to be in them.
fn view_bytes(views: &[u128]) -> usize {
    let outside = |view: &u128| match *view as u32 {
        length if length > MAX_INLINE_VIEW_LEN => length as usize,
        _ => 0,
    };
    size_of_val(views) + views.iter().map(outside).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{Int64Array, ListArray, StringViewArray};
    use datafusion::arrow::datatypes::Int64Type;

    #[test]
    fn slices_of_lists_and_views_have_their_part() {
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..1000).map(|i| Some(vec![Some(i), Some(i)])));
        assert_eq!(array_bytes(&lists), 1001 * 4 + 2000 * 8);
        assert_eq!(array_bytes(&lists.slice(500, 10)), 11 * 4 + 20 * 8);
        let views = StringViewArray::from_iter_values((0..1000).map(|i| format!("a text that is long enough, {i:04}")));
        assert_eq!(array_bytes(&views.slice(0, 10)), 10 * (16 + 32));
        assert_eq!(array_bytes(&Int64Array::from_iter_values(0..10).slice(0, 5)), 40);
    }
}
