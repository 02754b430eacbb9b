//! Copies of slices, which do not drag along the larger buffers that they were cut from.

use datafusion::arrow::array::{Array, ArrayRef, MutableArrayData, RecordBatch, RecordBatchOptions, make_array};
use datafusion::common::Result;

use super::views::{compact_views, has_views};

/// The same rows in buffers of their own.
pub(crate) fn copied(batch: &RecordBatch) -> Result<RecordBatch> {
    let batch = compact_views(batch)?;
    let columns = batch.columns().iter().map(copied_column).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

fn copied_column(column: &ArrayRef) -> Result<ArrayRef> {
    if has_views(column.data_type()) {
        return Ok(ArrayRef::clone(column));
    }
    let data = column.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, data.len());
    copy.try_extend(0, 0, data.len())?;
    Ok(make_array(copy.freeze()))
}
