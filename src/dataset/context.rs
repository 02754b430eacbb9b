//! The front hall of the Dataset API: a session, and the datasets that begin in it.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, config_err, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::provider_as_source;
use datafusion::execution::context::SessionContext;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use parking_lot::Mutex;

use super::Dataset;
use super::cursor::Cursors;
use super::replay::Definitions;
use crate::block::Block;
use crate::call::{TableFunction, TableFunctions, extension_of};
use crate::cloud::{CloudStores, StoreOptions};
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::functions::{BatchFunction, FunctionRef, FunctionRegistry, Row, batch_of_rows, from_closure};
use crate::optimizer::RuleRegistry;
use crate::planner::{SinkTable, written_format};
use crate::runtime::Scheduler;
use crate::sinks::{Datasink, WriteFormat};
use crate::sources::{
    Datasource, DatasourceTable, DivertedRows, FileRead, FileTable, Range, ReadBinaryFilesOptions, ReadCsvOptions,
    ReadJsonOptions, ReadParquetOptions, ReadTextOptions, StoredBlocks,
};
use crate::store::{BlockStore, NextUse, Owner};
use crate::tensors::TensorShape;

/// A ready-made session. Cloning shares it.
#[derive(Clone)]
pub struct DataContext {
    session: SessionContext,
    store: Arc<BlockStore>,
    scheduler: Arc<Scheduler>,
    functions: Arc<FunctionRegistry>,
    table_functions: Arc<TableFunctions>,
    rules: Arc<Mutex<RuleRegistry>>,
    cursors: Arc<Cursors>,
    stores: Arc<CloudStores>,
    /// Statements that said what names mean, in the order in which they ran.
    definitions: Definitions,
}

impl std::fmt::Debug for DataContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataContext({})", self.store.budget())
    }
}

impl DataContext {
    /// Around a session that has what Blockyard adds to one. Fails where it has not.
    pub(crate) fn around(session: SessionContext, rules: RuleRegistry) -> Result<Self> {
        let state = session.state();
        let (store, scheduler) = (extension_of(&state)?, extension_of(&state)?);
        let (functions, table_functions) = (extension_of(&state)?, extension_of(&state)?);
        let (rules, stores) = (Arc::new(Mutex::new(rules)), extension_of(&state)?);
        let (cursors, definitions) = (Arc::default(), Definitions::default());
        Ok(Self { session, store, scheduler, functions, table_functions, rules, cursors, stores, definitions })
    }

    /// The session of DataFusion underneath.
    pub fn session(&self) -> &SessionContext {
        &self.session
    }

    /// The block store, with what it holds and has spilled.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }

    /// The object stores by their addresses.
    pub(crate) fn stores(&self) -> &Arc<CloudStores> {
        &self.stores
    }

    /// Says how object stores are reached and who asks, as `CREATE OR REPLACE SECRET` does, for whatever is planned
    /// from now on. Values are shown nowhere.
    ///
    /// # Errors
    ///
    /// Where kind, scope or keys are unknown.
    pub fn create_secret(&self, name: &str, options: StoreOptions) -> Result<()> {
        self.stores.create_secret(name, options, true)
    }

    /// Forgets a secret.
    ///
    /// # Errors
    ///
    /// Where there is none of that name.
    pub fn drop_secret(&self, name: &str) -> Result<()> {
        self.stores.drop_secret(name, false)
    }

    /// Statements that said what names mean, in the order in which they ran.
    pub(super) fn definitions(&self) -> &Definitions {
        &self.definitions
    }

    /// Remembers a statement that says what a name means.
    pub(crate) fn defined_by(&self, statement: &str) {
        self.definitions.add(statement);
    }

    /// The cursors that are open.
    pub(crate) fn cursors(&self) -> &Cursors {
        &self.cursors
    }

    /// Opens a cursor over a query.
    pub(crate) fn declare_cursor(&self, name: &str, plan: LogicalPlan) -> Result<()> {
        // With these cursors, they would hold themselves.
        let context = Self { cursors: Arc::default(), ..self.clone() };
        self.cursors.declare(name, context.dataset(plan))
    }

    /// The next rows of a cursor, at most so many.
    pub(crate) async fn fetch_cursor(&self, name: &str, rows: usize) -> Result<Dataset> {
        let fetched = self.cursors.fetch(name, rows).await?;
        self.read_datasource(Arc::new(fetched), None)
    }

    /// What decides which tasks run.
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The `blockyard.*` options as they are now.
    pub fn config(&self) -> BlockyardOptions {
        BlockyardOptions::from_config(self.session.state().config_options())
    }

    /// The optimizer rules beyond DataFusion's, as they are now.
    pub fn rules(&self) -> RuleRegistry {
        self.rules.lock().clone()
    }

    /// Adds or removes optimizer rules, for datasets that are created from now on. Nothing changes when a rule finds no
    /// place.
    ///
    /// # Errors
    ///
    /// What `f` returns, and where a rule cannot stand where it should.
    pub fn configure_rules(&self, change: impl FnOnce(&mut RuleRegistry) -> Result<()>) -> Result<()> {
        let mut current = self.rules.lock();
        let mut rules = current.clone();
        change(&mut rules)?;
        let (logical, physical) = (rules.logical_rules()?, rules.physical_rules()?);
        let shared = self.session.state_ref();
        let mut state = shared.write();
        *state = SessionStateBuilder::new_from_existing(state.clone())
            .with_optimizer_rules(logical)
            .with_physical_optimizer_rules(physical)
            .build();
        *current = rules;
        Ok(())
    }

    /// The integers `0 .. n` in a column `id`.
    ///
    /// # Errors
    ///
    /// Where `n` is more than 2^63 - 1.
    pub fn range(&self, n: u64) -> Result<Dataset> {
        self.read_datasource(Arc::new(Range::try_new(n)?), None)
    }

    /// As [`DataContext::range`], in `num_blocks` blocks.
    ///
    /// # Errors
    ///
    /// Also where `num_blocks` is 0 or far too many.
    pub fn range_in_blocks(&self, n: u64, num_blocks: usize) -> Result<Dataset> {
        self.read_datasource(Arc::new(Range::try_new(n)?), Some(num_blocks))
    }

    /// `n` tensors of a shape in a column `data`, each filled with the number of its row.
    ///
    /// # Errors
    ///
    /// Where `n` is more than 2^63 - 1, or the shape has no dimension, a dimension of 0, or more than 2^31 - 1 values.
    pub fn range_tensor(&self, n: u64, shape: impl Into<Vec<usize>>) -> Result<Dataset> {
        self.read_datasource(Arc::new(Range::of_tensors(n, TensorShape::try_new(shape.into())?)?), None)
    }

    /// As [`DataContext::range_tensor`], in `num_blocks` blocks.
    ///
    /// # Errors
    ///
    /// Also where `num_blocks` is 0 or far too many.
    pub fn range_tensor_in_blocks(&self, n: u64, shape: impl Into<Vec<usize>>, num_blocks: usize) -> Result<Dataset> {
        self.read_datasource(Arc::new(Range::of_tensors(n, TensorShape::try_new(shape.into())?)?), Some(num_blocks))
    }

    /// A source of your own, read in `num_blocks` tasks or as many as its size asks for.
    ///
    /// # Errors
    ///
    /// Where `num_blocks` is 0 or far too many.
    pub fn read_datasource(&self, source: Arc<dyn Datasource>, num_blocks: Option<usize>) -> Result<Dataset> {
        num_blocks.map_or(Ok(()), |n| check_num_blocks("num_blocks", n))?;
        let name = source.name().to_owned();
        self.scan(&name, Arc::new(DatasourceTable::new(source, num_blocks)))
    }

    /// Values of a type that serde can describe, one column per field.
    ///
    /// # Errors
    ///
    /// Where serde cannot tell the columns, or the blocks find no room in memory and none on disk.
    pub fn from_items<T: Row>(&self, items: Vec<T>) -> Result<Dataset> {
        let batch = batch_of_rows(&items)?;
        self.stored("FromItems", vec![Block::new(batch.schema(), vec![batch])])
    }

    /// Record batches of one schema, one block each. At least one, which may be empty.
    ///
    /// # Errors
    ///
    /// Where there are none, their columns differ, or the blocks find no room in memory and none on disk.
    pub fn from_batches(&self, batches: Vec<RecordBatch>) -> Result<Dataset> {
        let Some(schema) = batches.first().map(RecordBatch::schema) else {
            return config_err!("from_batches needs at least one batch to know the columns");
        };
        if let Some(other) = batches.iter().find(|b| b.schema() != schema) {
            return config_err!("all batches must have the same columns, got {schema} and {}", other.schema());
        }
        let blocks = batches.into_iter().map(|b| Block::new(Arc::clone(&schema), vec![b])).collect();
        self.stored("FromArrow", blocks)
    }

    /// The rows that the last query with [`OnError::Divert`](crate::functions::OnError::Divert) to this name has diverted, with
    /// the error (`_error`), the files that the task reads (`_file`), the number of the row among those of the task
    /// that came to the function (`_row`), and the task (`_task`).
    ///
    /// # Errors
    ///
    /// Where no query has diverted rows to this name.
    pub fn diverted(&self, name: &str) -> Result<Dataset> {
        self.scan("diverted", DivertedRows::new(Arc::clone(&self.store)).table(name)?)
    }

    /// A DataFrame of this session as a dataset.
    pub fn from_dataframe(&self, frame: DataFrame) -> Dataset {
        let (state, plan) = frame.into_parts();
        Dataset::new(self.clone(), state, plan)
    }

    /// Files of any format: paths, directories, globs or URLs, and the options of the format.
    ///
    /// ```
    /// # use blockyard::prelude::*;
    /// # use blockyard::{ReadCsvOptions, ReadTextOptions};
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let directory = tempfile::tempdir()?;
    /// # std::fs::write(directory.path().join("a.csv"), "x;y\n1;2\n")?;
    /// # let path = directory.path().to_str().unwrap_or_default();
    /// let context = DataContext::new()?;
    /// let rows = context.read(path, ReadCsvOptions { delimiter: Some(';'), ..Default::default() }).await?;
    /// assert_eq!(rows.columns(), ["x", "y"]);
    /// let lines = ReadTextOptions { file_extensions: Some(vec!["csv".into()]), ..Default::default() };
    /// assert_eq!(context.read(path, lines).await?.count().await?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Where a path does not exist or has no such files, they cannot be read, their columns are not what they should
    /// be, or an option makes no sense.
    pub async fn read(&self, paths: impl Into<Paths>, options: impl Into<FileRead>) -> Result<Dataset> {
        let Paths(paths) = paths.into();
        let FileRead(format) = options.into();
        let last_part = |path: &String| path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let name = paths.first().map_or("files".to_owned(), last_part);
        let table = FileTable::open(&self.session.state(), format, paths).await?;
        self.scan(&name, Arc::new(table))
    }

    /// Parquet files: paths, directories, globs or URLs. [`DataContext::read`] takes
    /// [`ReadParquetOptions`].
    ///
    /// # Errors
    ///
    /// As [`DataContext::read`].
    pub async fn read_parquet(&self, paths: impl Into<Paths>) -> Result<Dataset> {
        self.read(paths, ReadParquetOptions::default()).await
    }

    /// CSV files: paths, directories, globs or URLs. [`DataContext::read`] takes
    /// [`ReadCsvOptions`].
    ///
    /// # Errors
    ///
    /// As [`DataContext::read`].
    pub async fn read_csv(&self, paths: impl Into<Paths>) -> Result<Dataset> {
        self.read(paths, ReadCsvOptions::default()).await
    }

    /// Files with one JSON object per line, or an array of them: paths, directories, globs or URLs.
    /// [`DataContext::read`] takes [`ReadJsonOptions`].
    ///
    /// # Errors
    ///
    /// As [`DataContext::read`].
    pub async fn read_json(&self, paths: impl Into<Paths>) -> Result<Dataset> {
        self.read(paths, ReadJsonOptions::default()).await
    }

    /// The lines of text files, as a column `text`: paths, directories, globs or URLs. [`DataContext::read`] takes
    /// [`ReadTextOptions`].
    ///
    /// # Errors
    ///
    /// As [`DataContext::read`].
    pub async fn read_text(&self, paths: impl Into<Paths>) -> Result<Dataset> {
        self.read(paths, ReadTextOptions::default()).await
    }

    /// Whole files, each as one row with a column `bytes`: paths, directories, globs or URLs. [`DataContext::read`]
    /// takes [`ReadBinaryFilesOptions`].
    ///
    /// # Errors
    ///
    /// As [`DataContext::read`].
    pub async fn read_binary_files(&self, paths: impl Into<Paths>) -> Result<Dataset> {
        self.read(paths, ReadBinaryFilesOptions::default()).await
    }

    /// Makes a function known to SQL and to `map_batches` by name.
    pub fn register_function(&self, name: &str, function: impl BatchFunction + 'static) {
        self.functions.register(name, FunctionRef::new(function));
    }

    /// Makes a closure known to SQL and to `map_batches` by name.
    pub fn register_batches<F>(&self, name: &str, f: F)
    where
        F: Fn(RecordBatch) -> Result<RecordBatch> + Send + Sync + 'static,
    {
        self.functions.register(name, from_closure(f));
    }

    /// Makes a dataset a table of SQL. It stays lazy: each query runs it.
    ///
    /// # Errors
    ///
    /// Where there is a table of this name.
    pub fn register_dataset(&self, name: &str, dataset: &Dataset) -> Result<()> {
        self.session.register_table(name, dataset.clone().into_dataframe().into_view())?;
        Ok(())
    }

    /// Makes a source of your own a table of SQL.
    ///
    /// # Errors
    ///
    /// Where there is a table of this name.
    pub fn register_source(&self, name: &str, source: Arc<dyn Datasource>) -> Result<()> {
        self.session.register_table(name, Arc::new(DatasourceTable::new(source, None)))?;
        Ok(())
    }

    /// Makes a sink of your own a table of SQL, which INSERT INTO writes rows with the columns of `schema` to.
    ///
    /// # Errors
    ///
    /// Where there is a table of this name.
    pub fn register_sink(&self, name: &str, schema: SchemaRef, sink: impl Datasink) -> Result<()> {
        self.session.register_table(name, Arc::new(SinkTable::new(Arc::new(sink), schema)))?;
        Ok(())
    }

    /// Makes a table function known to SQL.
    ///
    /// # Errors
    ///
    /// Where there is one of its name.
    pub fn register_table_function(&self, function: impl TableFunction) -> Result<()> {
        self.table_functions.register(function)
    }

    /// Makes a format known to COPY, by the extension of its files, and to [`Dataset::write`].
    ///
    /// # Errors
    ///
    /// Where there is a format with this extension, or it has none.
    pub fn register_write_format(&self, format: impl WriteFormat) -> Result<()> {
        if format.extensions().is_empty() {
            return plan_err!("the format {} says no extension of its files", format.name());
        }
        let factory = written_format(Arc::new(format));
        let extension = factory.get_ext();
        if self.session.state().get_file_format_factory(&extension).is_some() {
            return plan_err!("there is a format '{extension}' already");
        }
        self.session.state_ref().write().register_file_format(factory, false)
    }

    /// The table functions of SQL: those that every session has, and registered ones.
    pub fn table_functions(&self) -> &Arc<TableFunctions> {
        &self.table_functions
    }

    /// The registered functions.
    pub fn functions(&self) -> &Arc<FunctionRegistry> {
        &self.functions
    }

    /// A dataset that scans a table.
    pub(crate) fn scan(&self, name: &str, table: Arc<dyn TableProvider>) -> Result<Dataset> {
        // Qualified names would show up in the columns of joins and zips.
        let name = datafusion::common::TableReference::bare(name);
        let plan = LogicalPlanBuilder::scan(name, provider_as_source(table), None)?.build()?;
        Ok(self.dataset(plan))
    }

    /// A dataset of a plan, with the settings that the session has now.
    pub(crate) fn dataset(&self, plan: LogicalPlan) -> Dataset {
        Dataset::new(self.clone(), self.state(), plan)
    }

    /// A snapshot of the session.
    pub(crate) fn state(&self) -> SessionState {
        self.session.state()
    }

    fn stored(&self, name: &'static str, blocks: Vec<Block>) -> Result<Dataset> {
        let Some(schema) = blocks.first().map(|b| Arc::clone(b.schema())) else {
            return config_err!("no blocks");
        };
        let owner = Arc::new(Owner::default());
        let handles =
            blocks.into_iter().map(|b| self.store.put(b, NextUse::Kept, &owner)).collect::<Result<Vec<_>>>()?;
        self.read_datasource(Arc::new(StoredBlocks::new(name, schema, handles)), None)
    }
}

/// One path or several.
#[derive(Debug, Clone)]
pub struct Paths(Vec<String>);

impl From<&str> for Paths {
    fn from(path: &str) -> Self {
        Self(vec![path.to_owned()])
    }
}

impl From<String> for Paths {
    fn from(path: String) -> Self {
        Self(vec![path])
    }
}

impl<S: Into<String>> From<Vec<S>> for Paths {
    fn from(paths: Vec<S>) -> Self {
        Self(paths.into_iter().map(Into::into).collect())
    }
}
