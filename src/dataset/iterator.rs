//! Consuming a dataset batch by batch or row by row.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::common::Result;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};

use super::Dataset;
use crate::functions::{Row, rows_of_batch};

/// How batches are handed out.
#[derive(Debug, Clone)]
pub struct IterOptions {
    /// Rows of a batch; at least 1. `None`: batches as they come.
    pub batch_size: Option<usize>,
    /// Leaves out the last batch when it is short.
    pub drop_last: bool,
}

impl Default for IterOptions {
    fn default() -> Self {
        Self { batch_size: Some(256), drop_last: false }
    }
}

impl Dataset {
    /// Streams the rows in batches of a size, in order. Dropping the stream stops the work behind it.
    ///
    /// # Errors
    ///
    /// Where the dataset cannot be planned, or needs more memory than there is. What fails later is an error of the
    /// stream.
    pub async fn iter_batches(&self, options: IterOptions) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let batches = self.stream().await?;
        let Some(size) = options.batch_size else {
            return Ok(batches.boxed());
        };
        let buffer = BatchCoalescer::new(batches.schema(), size.max(1));
        let sized = stream::try_unfold((batches, buffer, false), |(mut batches, mut buffer, mut ended)| async move {
            loop {
                if let Some(batch) = buffer.next_completed_batch() {
                    return Ok(Some((batch, (batches, buffer, ended))));
                }
                if ended {
                    return Ok(None);
                }
                match batches.try_next().await? {
                    Some(batch) => buffer.push_batch(batch)?,
                    None => {
                        ended = true;
                        buffer.finish_buffered_batch()?;
                    }
                }
            }
        });
        let wanted = move |batch: &RecordBatch| !options.drop_last || batch.num_rows() == size;
        Ok(sized.try_filter(move |batch| std::future::ready(wanted(batch))).boxed())
    }

    /// Streams the rows, typed by serde, in order.
    ///
    /// # Errors
    ///
    /// As [`Dataset::iter_batches`]. That a row is no `T` is an error of the stream.
    pub async fn iter_rows<T: Row>(&self) -> Result<BoxStream<'static, Result<T>>> {
        let rows = self.stream().await?.map(|batch| rows_of_batch::<T>(&batch?));
        Ok(rows.map_ok(|rows| stream::iter(rows).map(Ok)).try_flatten().boxed())
    }
}
