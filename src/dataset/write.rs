//! Writing a dataset: one file per block.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::common::{Result, TableReference, plan_datafusion_err};
use datafusion::datasource::file_format::format_as_file_type;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::logical_expr::dml::InsertOp;

use super::Dataset;
use crate::observability::Execution;
use crate::planner::SinkTable;
use crate::sinks::{Datasink, SaveMode, WrittenFile};

/// How a dataset is written. Start from the default and set what differs.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// What happens to files that are there. Default: append.
    pub mode: Option<SaveMode>,
    /// The most rows of a file. Blocks that have more are cut.
    pub max_rows_per_file: Option<usize>,
    /// The least rows of a file, but for the last one: neighbouring blocks are joined, as far as
    /// `target_max_block_size` allows.
    pub min_rows_per_file: Option<usize>,
    /// The most bytes of a file's rows, as they are in memory: files are smaller where their format is. A row of more
    /// is a file of its own, and rows that are much larger than those around them may go over it.
    pub max_bytes_per_file: Option<usize>,
    /// The columns whose values are directories, `key=value/`, in their order.
    pub partition_by: Vec<String>,
    /// How files are called, like `{write_id}-{number:04}`, without the ending of their format. `part-{number:06}` if
    /// not said.
    pub file_name: Option<String>,
    /// A name of the write, under which it happens once: a second run does nothing where the first was completed, and
    /// takes the place of what it left where it was cut short.
    pub write_id: Option<String>,
    /// Options of the format as in SQL's COPY, like `("compression", "zstd(3)")`.
    pub format: Vec<(String, String)>,
    /// Of a pipeline: the files of each window appear when it is complete, rather than all files at the end.
    pub commit_each_window: bool,
}

impl Dataset {
    /// Writes one Parquet file per block into a directory; returns the number of rows. Files appear together once all
    /// are complete, as `part-000000.parquet` and so on in the order of the rows.
    ///
    /// # Errors
    ///
    /// Where the query fails, or the directory cannot be written. Nothing new is in it then.
    pub async fn write_parquet(&self, directory: &str) -> Result<usize> {
        self.write_parquet_with(directory, WriteOptions::default()).await
    }

    /// As [`Dataset::write_parquet`], with options.
    ///
    /// # Errors
    ///
    /// Also where the format has no such option, and where the mode forbids to write to a directory with files.
    pub async fn write_parquet_with(&self, directory: &str, options: WriteOptions) -> Result<usize> {
        self.write_with("parquet", directory, options).await
    }

    /// As [`Dataset::write_parquet`], in CSV with a header line in each file.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet`].
    pub async fn write_csv(&self, directory: &str) -> Result<usize> {
        self.write_csv_with(directory, WriteOptions::default()).await
    }

    /// As [`Dataset::write_csv`], with options.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet_with`].
    pub async fn write_csv_with(&self, directory: &str, options: WriteOptions) -> Result<usize> {
        self.write_with("csv", directory, options).await
    }

    /// As [`Dataset::write_parquet`], with one JSON object per line.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet`].
    pub async fn write_json(&self, directory: &str) -> Result<usize> {
        self.write_json_with(directory, WriteOptions::default()).await
    }

    /// As [`Dataset::write_json`], with options.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet_with`].
    pub async fn write_json_with(&self, directory: &str, options: WriteOptions) -> Result<usize> {
        self.write_with("json", directory, options).await
    }

    /// As [`Dataset::write_parquet`], in any format that the session knows by the extension of its files: one of the
    /// above, or one that an application has [registered](crate::DataContext::register_write_format).
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet`], and where there is no such format.
    pub async fn write(&self, format: &str, directory: &str) -> Result<usize> {
        self.write_with(format, directory, WriteOptions::default()).await
    }

    /// As [`Dataset::write`], with options.
    ///
    /// # Errors
    ///
    /// As [`Dataset::write_parquet_with`], and where there is no such format.
    pub async fn write_with(&self, format: &str, directory: &str, options: WriteOptions) -> Result<usize> {
        if options.commit_each_window {
            // Boxed: each window is written by this method.
            return Box::pin(self.write_each_window(format, directory, options)).await;
        }
        let factory = self
            .state
            .get_file_format_factory(format)
            .ok_or_else(|| plan_datafusion_err!("the session has no format '{format}'"))?;
        let mut settings: HashMap<String, String> =
            options.format.into_iter().map(|(key, value)| (format!("format.{key}"), value)).collect();
        settings.insert("single_file_output".to_owned(), "false".to_owned());
        if let Some(mode) = options.mode {
            settings.insert("format.mode".to_owned(), mode.to_string());
        }
        let number = |number: usize| number.to_string();
        let said = [
            ("max_rows_per_file", options.max_rows_per_file.map(number)),
            ("min_rows_per_file", options.min_rows_per_file.map(number)),
            ("max_bytes_per_file", options.max_bytes_per_file.map(number)),
            ("write_id", options.write_id),
            ("file_name", options.file_name),
        ];
        settings.extend(said.into_iter().filter_map(|(name, text)| Some((format!("format.{name}"), text?))));
        let file_type = format_as_file_type(Arc::clone(&factory));
        let url = format!("{}/", directory.trim_end_matches('/'));
        let copy = copy_text(&url, format, &settings, &options.partition_by);
        let plan = self.plan.clone();
        let plan = LogicalPlanBuilder::copy_to(plan, url, file_type, settings, options.partition_by)?.build()?;
        self.write_by(self.with_plan(plan).said_around(copy)).await
    }

    /// Writes the rows to a sink of your own; returns their number, which is 0 where the sink has nothing written.
    ///
    /// # Errors
    ///
    /// Where the query fails, or the sink does.
    pub async fn write_datasink(&self, sink: impl Datasink) -> Result<usize> {
        let name = TableReference::bare(sink.name().to_owned());
        let table = provider_as_source(Arc::new(SinkTable::new(Arc::new(sink), self.schema())));
        let plan = LogicalPlanBuilder::insert_into(self.plan.clone(), name, table, InsertOp::Append)?.build()?;
        self.write_by(self.with_plan(plan)).await
    }

    /// The files of the last write of this dataset, in the order of their rows: none where the write had happened
    /// already, or what was there was to stay.
    pub fn written_files(&self) -> Vec<WrittenFile> {
        self.last.lock().as_ref().map_or(Vec::new(), Execution::written_files)
    }

    /// Runs a write. Returns the number of rows.
    async fn write_by(&self, write: Self) -> Result<usize> {
        let written = write.take_all().await;
        *self.last.lock() = write.last.lock().take();
        let rows = written?.first().map_or(0, |batch| batch.column(0).as_primitive::<UInt64Type>().value(0));
        Ok(rows as usize)
    }
}

/// The statement that writes the rows of another one, so that executors plan the same.
fn copy_text(
    url: &str,
    format: &str,
    settings: &HashMap<String, String>,
    partition_by: &[String],
) -> impl FnOnce(&str) -> String + use<> {
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let options = settings.iter().filter(|(key, _)| *key != "single_file_output");
    let options: Vec<String> = options.map(|(key, value)| format!("{} {}", literal(key), literal(value))).collect();
    let columns: Vec<String> =
        partition_by.iter().map(|column| format!("\"{}\"", column.replace('"', "\"\""))).collect();
    let listed = |word: &str, parts: Vec<String>| match parts.is_empty() {
        true => String::new(),
        false => format!(" {word} ({})", parts.join(", ")),
    };
    let (by, options) = (listed("PARTITIONED BY", columns), listed("OPTIONS", options));
    let to = format!("TO {} STORED AS {format}{by}{options}", literal(url));
    move |rows| format!("COPY (\n{rows}\n) {to}")
}
