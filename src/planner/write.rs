//! COPY and INSERT as a `WriteExec`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{Result, internal_err, not_impl_err, plan_err};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileOutputMode, FileSinkConfig};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use crate::config::ByteSize;
use crate::physical::{BlockSize, ExchangeExec, IntoPlan, RangeScheme, SizeScheme, WriteExec, can_sort};
use crate::sinks::{FileNames, FileWriter, PartitionColumns, SaveMode, Target, WriteFormat, WriteId};

/// What is said of a write of any format.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteSettings {
    /// What happens to files that are there.
    mode: Option<SaveMode>,
    /// Rows of a file: at most, and at least but for the last one.
    max_rows_per_file: Option<usize>,
    min_rows_per_file: Option<usize>,
    /// Bytes of the rows of a file, at most.
    max_bytes_per_file: Option<usize>,
    /// The name of a write that happens once.
    write_id: Option<WriteId>,
    /// A template of the names of files.
    file_name: Option<String>,
}

impl WriteSettings {
    /// Those among the options of a format, which know nothing of them.
    pub(super) fn taken_from(options: &mut HashMap<String, String>) -> Result<Self> {
        let mode = options.remove("format.mode").map(|mode| mode.parse()).transpose()?;
        let write_id = options.remove("format.write_id").map(|name| WriteId::new(&name)).transpose()?;
        let file_name = options.remove("format.file_name");
        let bytes = options.remove("format.max_bytes_per_file").map(|bytes| match bytes.parse() {
            Ok(ByteSize(bytes)) if bytes > 0 => Ok(bytes),
            _ => plan_err!("max_bytes_per_file takes a size like '64MiB', got '{bytes}'"),
        });
        let mut rows = |name: &str| {
            let Some(text) = options.remove(&format!("format.{name}")) else { return Ok(None) };
            match text.parse::<usize>() {
                Ok(rows) if rows > 0 => Ok(Some(rows)),
                _ => plan_err!("{name} takes a number of rows from 1 on, got '{text}'"),
            }
        };
        let settings = Self {
            mode,
            max_rows_per_file: rows("max_rows_per_file")?,
            min_rows_per_file: rows("min_rows_per_file")?,
            max_bytes_per_file: bytes.transpose()?,
            write_id,
            file_name,
        };
        match settings {
            Self { max_rows_per_file: Some(max), min_rows_per_file: Some(min), .. } if min > max => {
                plan_err!("min_rows_per_file is {min}, and max_rows_per_file only {max}")
            }
            settings => Ok(settings),
        }
    }

    /// The rows as blocks that are the files.
    fn blocks(&self, input: Arc<dyn ExecutionPlan>, partitions: usize) -> Arc<dyn ExecutionPlan> {
        let size = match (self.max_rows_per_file, self.min_rows_per_file) {
            (None, None) => return input,
            (Some(rows), None) => BlockSize::Rows { rows, strict: false },
            (max, Some(min)) => BlockSize::Rows { rows: max.unwrap_or(min), strict: true },
        };
        ExchangeExec::new(input, SizeScheme(size), partitions).into_plan()
    }
}

/// Fails where DataFusion takes a path for a pattern below the directory that begins it: files there would be replaced.
/// Nothing is written into the root of the disk.
fn check_place(url: &ListingTableUrl) -> Result<()> {
    if let Some(pattern) = url.get_glob() {
        return plan_err!(
            "a write goes to one place, and '{url}' has a pattern, '{pattern}': ?, * and [ cannot be in it"
        );
    }
    if url.scheme() == "file" && url.prefix().as_ref().is_empty() {
        return plan_err!("a write needs a directory or a file, and not the root of the disk");
    }
    Ok(())
}

/// The write of `input` in `format`.
pub(super) fn plan_write(
    input: Arc<dyn ExecutionPlan>,
    format: Arc<dyn WriteFormat>,
    settings: &WriteSettings,
    conf: FileSinkConfig,
    partitions: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    check_names(&input.schema())?;
    let url = conf.table_paths[0].clone();
    check_place(&url)?;
    let keys: Vec<String> = conf.table_partition_cols.iter().map(|(name, _)| name.clone()).collect();
    let single_file = match conf.file_output_mode {
        _ if !keys.is_empty() => false,
        FileOutputMode::SingleFile => true,
        FileOutputMode::Directory => false,
        FileOutputMode::Automatic => !url.is_collection() && url.file_extension().is_some(),
    };
    let default = match (single_file, conf.insert_op) {
        (_, InsertOp::Overwrite) | (true, _) => SaveMode::Overwrite,
        (false, _) => SaveMode::Append,
    };
    let mode = settings.mode.unwrap_or(default);
    let write_id = settings.write_id.clone();
    if write_id.is_some() && single_file {
        return plan_err!("a write with a write_id goes into a directory, not to one file");
    }
    if single_file && (settings.file_name.is_some() || settings.max_bytes_per_file.is_some()) {
        return plan_err!("file_name and max_bytes_per_file say nothing of a write to one file");
    }
    let names = FileNames::of_write(
        settings.file_name.as_deref(),
        write_id.as_ref(),
        &conf.file_extension,
        url.scheme() == "file",
    )?;
    let target = Target {
        url,
        names,
        extension: conf.file_extension,
        read_extensions: format.extensions(),
        single_file,
        mode,
        write_id,
    };
    let writer = FileWriter::new(format);
    if single_file && settings.max_rows_per_file.or(settings.min_rows_per_file).is_some() {
        return plan_err!("max_rows_per_file and min_rows_per_file say nothing of a write to one file");
    }
    if !keys.is_empty() && settings.min_rows_per_file.is_some() {
        return plan_err!("min_rows_per_file says nothing of a write that is PARTITIONED BY");
    }
    if keys.is_empty() {
        let write = WriteExec::new(settings.blocks(input, partitions), writer, target);
        return Ok(write.with_max_bytes(settings.max_bytes_per_file).into_plan());
    }
    let by = PartitionColumns::try_new(&input.schema(), &keys, conf.keep_partition_by_columns)?;
    let write = WriteExec::new(sorted_by(input, &keys, partitions)?, writer, target);
    Ok(write.with_max_bytes(settings.max_bytes_per_file).partitioned_by(by, settings.max_rows_per_file).into_plan())
}

/// Columns of files are told apart by their names.
fn check_names(schema: &Schema) -> Result<()> {
    let mut names = HashSet::new();
    match schema.fields().iter().find(|field| !names.insert(field.name())) {
        Some(field) => plan_err!(
            "there are two columns '{0}', and a file can have one of them; give the others names of their own, as in SELECT {0} \
             AS other",
            field.name()
        ),
        None => Ok(()),
    }
}

/// The rows by the values of `keys`, and as they were within each: who writes them has one file open at a time, however
/// many values there are.
fn sorted_by(input: Arc<dyn ExecutionPlan>, keys: &[String], partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = input.schema();
    let options = SortOptions { descending: false, nulls_first: false };
    let by_key = |name: &String| Ok(PhysicalSortExpr::new(col(name, &schema)?, options));
    let mut order = keys.iter().map(by_key).collect::<Result<Vec<_>>>()?;
    // An exchange does not ask for the order of its input, so what the query was sorted by is sorted by again.
    order.extend(input.properties().output_ordering().into_iter().flatten().cloned());
    let Some(order) = LexOrdering::new(order) else {
        return internal_err!("PARTITIONED BY without columns");
    };
    if !can_sort(&order, &schema) {
        return not_impl_err!("rows cannot be PARTITIONED BY ({}): there is no order of such values", keys.join(", "));
    }
    Ok(ExchangeExec::new(input, RangeScheme { order, boundaries: None }, partitions).into_plan())
}
