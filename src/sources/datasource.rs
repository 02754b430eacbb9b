//! The trait for sources of your own, and the table that any of them makes.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics};
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use super::files::detect_parallelism;
use crate::call::Planning;
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::physical::{IntoPlan, Operator, ReadExec, ReadMemory};

/// A source of rows in independent read tasks.
pub trait Datasource: Any + Debug + Send + Sync {
    /// What plans show, like `ReadRange`.
    fn name(&self) -> &str;

    /// Columns of the rows.
    fn schema(&self) -> SchemaRef;

    /// Bytes that all rows take in memory, as far as that is known.
    fn estimated_bytes(&self) -> Option<usize>;

    /// Exact number of rows, if it is known without reading them.
    fn num_rows(&self) -> Option<usize>;

    /// About `parallelism` tasks, in the order of the rows; at least one. Each may be run several times, and gives the
    /// same rows each time.
    ///
    /// # Errors
    ///
    /// Where what is to be read is not there.
    fn read_tasks(&self, parallelism: usize) -> Result<Vec<Arc<dyn PartitionStream>>>;
}

/// A [`Datasource`] as a table.
#[derive(Debug)]
pub struct DatasourceTable {
    source: Arc<dyn Datasource>,
    num_blocks: Option<usize>,
}

impl DatasourceTable {
    /// The table of `source`, read in `num_blocks` tasks or as many as its size asks for.
    pub fn new(source: Arc<dyn Datasource>, num_blocks: Option<usize>) -> Self {
        Self { source, num_blocks }
    }

    /// What `read` says of the source and its number of blocks, where a plan is the scan of a source of type `T`.
    pub fn scanned<T: Datasource, R>(plan: &LogicalPlan, read: impl FnOnce(&T, Option<usize>) -> R) -> Option<R> {
        let LogicalPlan::TableScan(scan) = plan else {
            return None;
        };
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<Self>()?;
        let source = (table.source.as_ref() as &dyn Any).downcast_ref::<T>()?;
        Some(read(source, table.num_blocks))
    }

    /// The plan of a call that reads a source.
    pub(super) fn plan(
        source: impl Datasource,
        num_blocks: Option<usize>,
        planning: &Planning<'_>,
    ) -> Result<LogicalPlan> {
        num_blocks.map_or(Ok(()), |n| check_num_blocks("argument 'override_num_blocks'", n))?;
        planning.scan(Arc::new(Self::new(Arc::new(source), num_blocks)))
    }

    /// Exact number of rows, if it is known without reading them.
    pub(crate) fn num_rows(&self) -> Option<usize> {
        self.source.num_rows()
    }
}

#[async_trait]
impl TableProvider for DatasourceTable {
    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = BlockyardOptions::from_config(state.config_options());
        let bytes = self.source.estimated_bytes().unwrap_or(0);
        let parallelism = self.num_blocks.unwrap_or_else(|| detect_parallelism(bytes, &options));
        let tasks = self.source.read_tasks(parallelism)?;
        let scan = StreamingTableExec::try_new(self.source.schema(), tasks, projection, None, false, limit)?;
        let read = ReadExec::new(self.source.name(), Arc::new(scan), state.config().target_partitions());
        let of_each = |bytes: usize| vec![bytes.div_ceil(read.num_tasks().max(1)); read.num_tasks()];
        let rows_bytes = self.source.estimated_bytes().map(of_each).unwrap_or_default();
        let read = read.with_memory(ReadMemory { rows_bytes, ..ReadMemory::default() });
        // With a limit the scan gives fewer rows than the source has, and how many depends on its tasks.
        let known = self.source.num_rows().filter(|_| limit.is_none());
        let Some(rows) = known else {
            return Ok(read.into_plan());
        };
        let schema = read.schema();
        let mut statistics = Statistics::new_unknown(&schema);
        statistics.num_rows = Precision::Exact(rows);
        if projection.is_none() {
            statistics.total_byte_size = self.source.estimated_bytes().map_or(Precision::Absent, Precision::Inexact);
        }
        Ok(read.with_statistics(statistics).into_plan())
    }

    fn statistics(&self) -> Option<Statistics> {
        let mut statistics = Statistics::new_unknown(&self.source.schema());
        statistics.num_rows = self.source.num_rows().map_or(Precision::Absent, Precision::Exact);
        Some(statistics)
    }
}
