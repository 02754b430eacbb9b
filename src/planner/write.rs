//! COPY and INSERT as a `WriteExec`.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::{Result, internal_err, not_impl_err, plan_err};
use datafusion::datasource::physical_plan::{FileOutputMode, FileSinkConfig};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;

use crate::physical::{ExchangeExec, IntoPlan, RangeScheme, WriteExec, can_sort};
use crate::sinks::{FileWriter, PartitionColumns, SaveMode, Target, WriteFormat};

/// The write of `input` in `format`. `mode` is what the user says of files that are there.
pub(super) fn plan_write(
    input: Arc<dyn ExecutionPlan>,
    format: Arc<dyn WriteFormat>,
    mode: Option<SaveMode>,
    conf: FileSinkConfig,
    partitions: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    check_names(&input.schema())?;
    let url = conf.table_paths[0].clone();
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
    let mode = mode.unwrap_or(default);
    let target =
        Target { url, extension: conf.file_extension, read_extensions: format.extensions(), single_file, mode };
    let writer = FileWriter::new(format);
    if keys.is_empty() {
        return Ok(WriteExec::new(input, writer, target).into_plan());
    }
    let by = PartitionColumns::try_new(&input.schema(), &keys, conf.keep_partition_by_columns)?;
    let sorted = sorted_by(input, &keys, partitions)?;
    Ok(WriteExec::new(sorted, writer, target).partitioned_by(by).into_plan())
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
