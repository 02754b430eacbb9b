//! The trait for sources of your own, and the table that any of them makes.

use std::any::Any;
use std::fmt::{self, Debug};
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue, Statistics, exec_err, plan_err};
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::StreamingTableExec;

use super::files::detect_parallelism;
use super::read_task::{ReadTask, TaskOrigin, checked};
use crate::boxed::scan_by;
use crate::call::Planning;
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::physical::{IntoPlan, ReadExec, ReadMemory};
use futures::FutureExt;
use futures::future::BoxFuture;

/// A source of rows in independent read tasks.
///
/// Queries read it through [`DataContext::read_datasource`](crate::DataContext::read_datasource), and by a name through
/// [`DataContext::register_source`](crate::DataContext::register_source).
#[async_trait]
pub trait Datasource: Any + Debug + Send + Sync {
    /// What plans show, like `ReadRange`.
    fn name(&self) -> &str;

    /// Columns of the rows.
    fn schema(&self) -> SchemaRef;

    /// Exact number of all rows, if it is known without reading them.
    fn num_rows(&self) -> Option<usize> {
        None
    }

    /// Whether another process that makes the source from the same call of a table function reads the same rows in the
    /// same tasks. All that decides them is in what `Debug` says of the source.
    fn is_anywhere(&self) -> bool {
        false
    }

    /// What the source does with each of these conditions when its rows are read: nothing (`Unsupported`, the default),
    /// it leaves out some rows of which they are not true (`Inexact`; they are looked at again), or all of them
    /// (`Exact`). The others do not come to [`Datasource::plan`].
    ///
    /// # Errors
    ///
    /// Where a condition cannot be looked at.
    fn pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Unsupported; filters.len()])
    }

    /// The tasks of a read, in the order of the rows; none where there are no rows. Each may be run several times, and
    /// gives the same rows each time.
    ///
    /// # Errors
    ///
    /// Where what is to be read is not there.
    async fn plan(&self, request: ReadRequest<'_>) -> Result<ReadPlan>;
}

/// What is asked of a source.
#[derive(Debug, Clone, Copy)]
pub struct ReadRequest<'a> {
    /// Numbers of the columns that are needed, in this order; all of them if `None`. Tasks give these, or all columns
    /// of the source.
    pub columns: Option<&'a [usize]>,
    /// Conditions that the source has said it would look at. None is a constant.
    pub filters: Filters<'a>,
    /// No more rows than this are needed, of all tasks together.
    pub limit: Option<usize>,
    num_blocks: Option<usize>,
    options: &'a BlockyardOptions,
}

/// Conditions: a slice of expressions.
#[derive(Clone, Copy)]
pub struct Filters<'a>(&'a (dyn Deref<Target = [Expr]> + Send + Sync));

impl Deref for Filters<'_> {
    type Target = [Expr];

    fn deref(&self) -> &[Expr] {
        self.0
    }
}

impl<'a> IntoIterator for Filters<'a> {
    type Item = &'a Expr;
    type IntoIter = std::slice::Iter<'a, Expr>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl fmt::Debug for Filters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl ReadRequest<'_> {
    /// How many tasks are wanted for rows of so many bytes in memory: as many as the user said, or as the size asks
    /// for.
    pub fn parallelism(&self, bytes: Option<usize>) -> usize {
        self.num_blocks.unwrap_or_else(|| detect_parallelism(bytes.unwrap_or(0), self.options))
    }

    /// The columns that are needed, of those of the source.
    ///
    /// # Errors
    ///
    /// Where these are not the columns of the source.
    pub fn schema(&self, all: &SchemaRef) -> Result<SchemaRef> {
        Ok(match self.columns {
            Some(columns) => Arc::new(all.project(columns)?),
            None => Arc::clone(all),
        })
    }
}

/// How a source is read.
#[derive(Debug)]
pub struct ReadPlan {
    /// In the order of the rows.
    pub tasks: Vec<ReadTask>,
    /// What is known of the rows of all tasks and of the columns of the source, beyond what the tasks say.
    pub statistics: Option<Statistics>,
}

impl From<Vec<ReadTask>> for ReadPlan {
    fn from(tasks: Vec<ReadTask>) -> Self {
        Self { tasks, statistics: None }
    }
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

    /// The scan of these tasks, and whether it gives only the columns that are needed by itself.
    fn scan_of(
        &self,
        tasks: &[ReadTask],
        projection: Option<&Vec<usize>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (name, all) = (self.source.name(), self.source.schema());
        let needed = match projection {
            Some(columns) => Arc::new(all.project(columns)?),
            None => Arc::clone(&all),
        };
        let given = tasks.first().map_or(&needed, |task| task.stream.schema());
        if let Some(other) = tasks.iter().position(|task| task.stream.schema().fields() != given.fields()) {
            return exec_err!("{name} task {other} has other columns than task 0");
        }
        let (schema, projection) = match () {
            () if given.fields() == all.fields() => (all, projection),
            () if given.fields() == needed.fields() => (needed, None),
            () => return exec_err!("the tasks of {name} have the columns {given}, and it said that it has {all}"),
        };
        let tasks = tasks.iter().enumerate().map(|(number, task)| checked(name, number, task, &schema)).collect();
        Ok(Arc::new(StreamingTableExec::try_new(Arc::clone(&schema), tasks, projection, None, false, limit)?))
    }

    /// What is known of the rows that are read.
    fn statistics_of(
        &self,
        plan: &ReadPlan,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Statistics {
        let all_of = |one: fn(&ReadTask) -> Option<usize>| {
            plan.tasks.iter().try_fold(0_usize, |sum, task| Some(sum.saturating_add(one(task)?)))
        };
        let known = plan.statistics.clone();
        let mut statistics = known.unwrap_or_else(|| Statistics::new_unknown(&self.source.schema()));
        let rows = all_of(|task| task.rows).or_else(|| self.source.num_rows().filter(|_| filters.is_empty()));
        if let Some(rows) = rows {
            statistics.num_rows = Precision::Exact(rows);
        }
        if let Some(bytes) = all_of(|task| task.bytes) {
            statistics.total_byte_size = Precision::Inexact(bytes);
        }
        if limit.is_some() {
            // The scan gives fewer rows than its tasks have, and how many depends on them.
            statistics = statistics.to_inexact();
        }
        if projection.is_some() {
            statistics.total_byte_size = Precision::Absent;
        }
        statistics.project(projection)
    }
}

impl DatasourceTable {
    /// The scan of the table.
    fn scan_rows<'a>(
        &'a self,
        state: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        async move {
            let options = BlockyardOptions::from_config(state.config_options());
            let columns = projection.map(Vec::as_slice);
            // Conditions that a source has taken over are simplified afterwards, and may be true of no row then.
            let (constants, filters): (Vec<Expr>, Vec<Expr>) =
                filters.iter().cloned().partition(|filter| matches!(filter, Expr::Literal(..)));
            let is_true = |constant: &Expr| matches!(constant, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
            let request = ReadRequest {
                columns,
                filters: Filters(&filters),
                limit,
                num_blocks: self.num_blocks,
                options: &options,
            };
            let mut plan = match constants.iter().all(is_true) {
                true => self.source.plan(request).await?,
                false => ReadPlan::from(Vec::new()),
            };
            if plan.tasks.is_empty() {
                plan.tasks.push(ReadTask::without_rows(self.source.schema()));
            }
            let statistics = self.statistics_of(&plan, projection, &filters, limit);
            let scan = self.scan_of(&plan.tasks, projection, limit)?;
            let memory = ReadMemory {
                // What tasks say is of all columns.
                row_bytes: plan
                    .tasks
                    .iter()
                    .filter_map(ReadTask::row_bytes)
                    .max()
                    .filter(|_| columns.is_none())
                    .unwrap_or(0),
                task_bytes: plan.tasks.iter().map(|task| task.held_bytes).collect(),
                rows_bytes: plan.tasks.iter().map(|task| task.bytes).collect::<Option<_>>().unwrap_or_default(),
            };
            let read = ReadExec::new(self.source.name(), scan, state.config().target_partitions());
            let call = self.source.is_anywhere().then(|| format!("{:?}", self.source));
            let read = read
                .with_call(call)
                .with_memory(memory)
                .with_origins(plan.tasks.into_iter().map(|task| task.origin.map(TaskOrigin::into)));
            Ok(read.with_statistics(statistics).into_plan())
        }
        .boxed()
    }
}

impl TableProvider for DatasourceTable {
    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let mut answers = self.source.pushdown(filters)?;
        if answers.len() != filters.len() {
            let (name, asked, said) = (self.source.name(), filters.len(), answers.len());
            return plan_err!("{name} was asked for {asked} conditions and answered for {said}");
        }
        for (answer, filter) in answers.iter_mut().zip(filters) {
            if filter.is_volatile() {
                *answer = TableProviderFilterPushDown::Unsupported;
            }
        }
        Ok(answers)
    }

    scan_by!(Self::scan_rows);

    fn statistics(&self) -> Option<Statistics> {
        let mut statistics = Statistics::new_unknown(&self.source.schema());
        statistics.num_rows = self.source.num_rows().map_or(Precision::Absent, Precision::Exact);
        Some(statistics)
    }
}
