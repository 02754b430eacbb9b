//! COPY and INSERT through our block writer: formats that wrap DataFusion's and plan a `WriteExec`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, Statistics, internal_err, not_impl_err, plan_err};
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory, FileMeta};
use datafusion::datasource::physical_plan::{FileOutputMode, FileScanConfig, FileSinkConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, LexRequirement, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use object_store::{ObjectMeta, ObjectStore};

use crate::physical::{ExchangeExec, Operator, RangeScheme, WriteExec, can_sort};
use crate::sinks::{FileWriter, PartitionColumns, SaveMode, Target};

/// DataFusion's formats, with their writers replaced by ours.
pub(crate) fn block_formats() -> Vec<Arc<dyn FileFormatFactory>> {
    let inner: [Arc<dyn FileFormatFactory>; 3] =
        [Arc::new(ParquetFormatFactory::new()), Arc::new(CsvFormatFactory::new()), Arc::new(JsonFormatFactory::new())];
    inner.map(|inner| Arc::new(BlockFormatFactory { inner }) as _).to_vec()
}

struct BlockFormatFactory {
    inner: Arc<dyn FileFormatFactory>,
}

impl fmt::Debug for BlockFormatFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockFormatFactory({})", self.get_ext())
    }
}

impl GetExt for BlockFormatFactory {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }
}

impl FileFormatFactory for BlockFormatFactory {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut options = options.clone();
        let mode = options.remove("format.mode").map(|mode| mode.parse()).transpose()?;
        let inner = self.inner.create(state, &options)?;
        Ok(Arc::new(BlockFormat { inner, mode }))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(BlockFormat { inner: self.inner.default(), mode: None })
    }
}

#[derive(Debug)]
struct BlockFormat {
    inner: Arc<dyn FileFormat>,
    mode: Option<SaveMode>,
}

#[async_trait]
impl FileFormat for BlockFormat {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.inner.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.inner.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.inner.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.inner.infer_stats(state, store, table_schema, object).await
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        self.inner.infer_ordering(state, store, table_schema, object).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        self.inner.infer_stats_and_ordering(state, store, table_schema, object).await
    }

    async fn create_physical_plan(&self, state: &dyn Session, conf: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        self.inner.create_physical_plan(state, conf).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        conf: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(writer) = FileWriter::of(self.inner.as_ref()) else {
            if self.mode.is_some() {
                return not_impl_err!("the option mode for files of this format");
            }
            return self.inner.create_writer_physical_plan(input, state, conf, order).await;
        };
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
        let mode = self.mode.unwrap_or(default);
        let target = Target { url, extension: conf.file_extension, single_file, mode };
        if keys.is_empty() {
            return Ok(WriteExec::new(input, writer, target).into_plan());
        }
        let by = PartitionColumns::try_new(&input.schema(), &keys, conf.keep_partition_by_columns)?;
        let sorted = sorted_by(input, &keys, state.config().target_partitions())?;
        Ok(WriteExec::new(sorted, writer, target).partitioned_by(by).into_plan())
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.inner.file_source(table_schema)
    }
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
