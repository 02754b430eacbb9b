//! Ray's `zip`: row i of every input beside each other, whatever their blocks.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, future};

use super::row_reader::RowReader;

/// The columns of the inputs, one after the other, are those of `schema`.
pub(super) fn zipped(inputs: Vec<RowReader>, schema: SchemaRef) -> BoxStream<'static, Result<RecordBatch>> {
    stream::try_unfold((inputs, schema), |(mut inputs, schema)| async move {
        let available = future::try_join_all(inputs.iter_mut().map(RowReader::available)).await?;
        let rows = available.into_iter().min().unwrap_or(0);
        if rows == 0 {
            let counts = future::try_join_all(inputs.iter_mut().map(RowReader::count_all)).await?;
            if counts.iter().all(|count| *count == counts[0]) {
                return Ok(None);
            }
            let counts: Vec<_> = counts.iter().map(ToString::to_string).collect();
            return exec_err!("zip needs equally many rows in all inputs, got {}", counts.join(" and "));
        }
        let parts: Vec<_> = inputs.iter_mut().map(|input| input.take(rows)).collect();
        let columns = parts.iter().flat_map(RecordBatch::columns).cloned().collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
        Ok(Some((batch, (inputs, schema))))
    })
    .boxed()
}
