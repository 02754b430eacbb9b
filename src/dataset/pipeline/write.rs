//! Writing a pipeline: all windows together, or each as soon as it is complete.

use datafusion::common::{Result, plan_err};
use futures::TryStreamExt;

use super::DatasetPipeline;
use crate::dataset::{Dataset, WriteOptions};
use crate::sinks::SaveMode;

impl DatasetPipeline {
    /// Writes the rows of all windows and epochs as [`Dataset::write_parquet`] does: the next window is made while one
    /// is written, and files have rows of one window each.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet`], and where the pipeline is endless.
    pub async fn write_parquet(&self, directory: &str) -> Result<usize> {
        self.write_with("parquet", directory, WriteOptions::default()).await
    }

    /// As [`Dataset::write_with`]; with [`WriteOptions::commit_each_window`], which may be without end, the files of
    /// each window appear when it is complete.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_with`], and where an endless pipeline is written, but not window by window.
    pub async fn write_with(&self, format: &str, directory: &str, options: WriteOptions) -> Result<usize> {
        self.0.write_with(format, directory, options).await
    }
}

impl Dataset {
    /// Writes the windows of the pipeline that the dataset is, each for itself. Those that were published stay where
    /// one fails.
    pub(in crate::dataset) async fn write_each_window(
        &self,
        format: &str,
        directory: &str,
        options: WriteOptions,
    ) -> Result<usize> {
        let Some(pipeline) = self.as_pipeline() else {
            return plan_err!("commit_each_window is for pipelines, and this dataset has no windows");
        };
        if options.write_id.is_some() {
            return plan_err!("commit_each_window does not go together with write_id, which is of one commit");
        }
        let mut options = WriteOptions { commit_each_window: false, ..options };
        let mut windows = pipeline.iter_windows().await?;
        let mut written = 0;
        while let Some(window) = windows.try_next().await? {
            let rows = window.write_with(format, directory, options.clone()).await?;
            if rows == 0 && options.mode == Some(SaveMode::Ignore) {
                return Ok(0);
            }
            written += rows;
            // What was there before the first window is dealt with.
            options.mode = Some(SaveMode::Append);
        }
        if options.mode == Some(SaveMode::Append) && written > 0 {
            return Ok(written);
        }
        // Without a window that has rows, there is a file that says the columns.
        self.limit(0)?.write_with(format, directory, options).await
    }
}
