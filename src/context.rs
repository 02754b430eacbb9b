//! The wiring: what makes a session of DataFusion a Blockyard session. The only place that knows all rooms.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, config_err};
use datafusion::config::{ParquetOptions, SpillCompression as OperatorSpillCompression};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::provider_as_source;
use datafusion::execution::context::SessionContext;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::SessionConfig;
use parking_lot::Mutex;

use crate::block::Block;
use crate::config::{BlockyardOptions, check_num_blocks};
use crate::dataset::Dataset;
use crate::functions::{BatchFunction, FunctionRef, FunctionRegistry, Row, batch_of_rows, bounded};
use crate::observability::{ExecutionCallback, Observers, SYSTEM_SCHEMA, system_schema};
use crate::optimizer::RuleRegistry;
use crate::planner::{BlockyardQueryPlanner, block_formats};
use crate::runtime::{BackpressurePolicy, Scheduler, in_thread};
use crate::sources::{
    Datasource, DatasourceTable, DivertedRows, FileKind, FileTable, Range, ReadOptions, StoredBlocks,
};
use crate::sql::{BlockyardRelationPlanner, DateArithmetic, run_statements};
use crate::store::{Allocator, BlockStore, Budget, NextUse, Owner, SharedMemoryPool, SpillDirectories};

/// Bytes that DataFusion reserves for the merge of each sort, when the limit is not smaller.
const SORT_MERGE_RESERVATION: usize = 10 << 20;
/// Bytes of the pages of Parquet files: they are encoded and compressed in the cache of a core.
const DATA_PAGE_BYTES: usize = 128 << 10;

/// What a session gets from us. Start from the default and set what differs.
#[derive(Debug, Clone, Default)]
pub struct Blockyard {
    /// The `blockyard.*` options.
    pub options: BlockyardOptions,
    /// Optimizer rules.
    pub rules: RuleRegistry,
    /// Functions that `map_batches` finds by name.
    pub functions: Arc<FunctionRegistry>,
    /// What holds stages back, beside the policies that `backpressure_policies` names.
    pub policies: Vec<Arc<dyn BackpressurePolicy>>,
    /// What is called as executions begin, go on and end.
    pub callbacks: Vec<Arc<dyn ExecutionCallback>>,
    /// The allocator of the process, if it can be told when memory is short.
    pub allocator: Option<Arc<dyn Allocator>>,
}

/// Adds Blockyard to any application of DataFusion.
pub trait SessionStateBuilderExt: Sized {
    /// Installs options, functions, rules, nodes, SQL, the block store and the memory pool, around the planner and
    /// rules that are there. Call it last. Fails when the spill directory cannot be used or a rule finds no place.
    fn with_blockyard(self, blockyard: Blockyard) -> Result<Self>;
}

impl SessionStateBuilderExt for SessionStateBuilder {
    fn with_blockyard(mut self, blockyard: Blockyard) -> Result<Self> {
        let Blockyard { options, rules, functions, policies, callbacks, allocator } = blockyard;
        let limit = options.memory_limit.bytes();
        let config = self.config().take().unwrap_or_default();
        least_memory(limit, config.target_partitions())?;

        let roots: Vec<PathBuf> = directories(&options.spill_directory);
        let directories = SpillDirectories::open(&roots, options.spill_quota.bound() as u64)?;
        let budget = Arc::new(Budget::new(limit).with_allocator(allocator));
        if let Some(watch) = Budget::watch(&budget) {
            in_thread("blockyard-memory", watch)?;
        }
        let store = Arc::new(BlockStore::new(budget, Arc::new(directories), options.spill_compression));
        in_thread("blockyard-spill", BlockStore::write_behind(&store))?;
        let pool = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
        let runtime = match self.runtime_env() {
            Some(existing) => RuntimeEnvBuilder::from_runtime_env(existing),
            None => RuntimeEnvBuilder::new(),
        };
        let runtime = runtime.with_memory_pool(Arc::clone(&pool) as _);
        // Lists of files would stay as they were first seen.
        let mut runtime = runtime.with_object_list_cache_limit(0).build()?;
        runtime.disk_manager = Arc::new(store.disk_manager()?);

        let diverted = DivertedRows::new(Arc::clone(&store));
        let mut config = honest_defaults(config, limit)?;
        config.set_extension(store);
        config.set_extension(Arc::new(Scheduler::new(policies, &options, config.target_partitions())?));
        config.set_extension(pool);
        config.set_extension(Arc::new(Observers::new(callbacks)));
        config.set_extension(Arc::clone(&functions));
        let config = config.with_option_extension(options);

        let logical = rules.logical_rules_among(self.optimizer().take().map(|o| o.rules))?;
        let physical = rules.physical_rules_among(self.physical_optimizers().take().map(|o| o.rules))?;
        let planner = BlockyardQueryPlanner::wrapping(self.query_planner().take());
        let mut relations = self.relation_planners().take().unwrap_or_default();
        let runtime = Arc::new(runtime);
        self.expr_planners().get_or_insert_default().insert(0, Arc::new(DateArithmetic));
        let mut aggregates = self.aggregate_functions().take().unwrap_or_default();
        aggregates.extend(crate::aggregates::all());
        relations.insert(0, Arc::new(BlockyardRelationPlanner::new(functions, Arc::clone(&runtime), diverted)));
        let scalars = bounded(self.scalar_functions().take().unwrap_or_default());
        let mut formats = self.file_formats().take().unwrap_or_default();
        let ours = block_formats();
        formats.retain(|format| !ours.iter().any(|o| o.get_ext() == format.get_ext()));
        formats.extend(ours);

        Ok(self
            .with_config(config)
            .with_runtime_env(runtime)
            .with_optimizer_rules(logical)
            .with_physical_optimizer_rules(physical)
            .with_query_planner(Arc::new(planner))
            .with_relation_planners(relations)
            .with_scalar_functions(scalars)
            .with_aggregate_functions(aggregates)
            .with_file_formats(formats))
    }
}

/// The directories of a list with commas.
fn directories(list: &str) -> Vec<PathBuf> {
    list.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Settings of DataFusion without which results or limits would not hold (see the traps in ARCHITECTURE.md), or much
/// would take longer.
fn honest_defaults(mut config: SessionConfig, limit: usize) -> Result<SessionConfig> {
    let partitions = config.target_partitions();
    let options = config.options_mut();
    // A slice of a view array counts, and keeps, all of its buffers.
    options.execution.parquet.schema_force_view_types = false;
    options.sql_parser.map_string_types_to_utf8view = false;
    // A shuffle or map above may depend on the order of a subquery.
    options.sql_parser.enable_subquery_sort_elimination = false;
    // Repartitions that spill into shared files can wait for each other forever.
    options.set("datafusion.execution.max_spill_file_size_bytes", "1")?;
    options.execution.spill_compression = OperatorSpillCompression::Lz4Frame;
    options.execution.sort_spill_reservation_bytes = sort_merge_reservation(limit, partitions);
    options.catalog.information_schema = true;
    // Without a zone, what is written as `timestamptz` is a timestamp without one.
    options.execution.time_zone.get_or_insert_with(|| "UTC".to_owned());
    let page = &mut options.execution.parquet.data_pagesize_limit;
    if *page == ParquetOptions::default().data_pagesize_limit {
        *page = DATA_PAGE_BYTES;
    }
    Ok(config)
}

/// What DataFusion sets aside for the merge of each sort.
fn sort_merge_reservation(limit: usize, partitions: usize) -> usize {
    SORT_MERGE_RESERVATION.min(limit / (8 * partitions))
}

/// A limit in which not even one batch per thread fits is an error before any work.
fn least_memory(limit: usize, partitions: usize) -> Result<()> {
    let least = partitions * (1 << 20);
    if limit < least {
        return config_err!(
            "memory_limit {} is too small: {partitions} threads need at least {}",
            crate::config::ByteSize(limit),
            crate::config::ByteSize(least)
        );
    }
    Ok(())
}

/// A ready-made session. Cloning shares it.
#[derive(Clone)]
pub struct DataContext {
    session: SessionContext,
    store: Arc<BlockStore>,
    scheduler: Arc<Scheduler>,
    functions: Arc<FunctionRegistry>,
    rules: Arc<Mutex<RuleRegistry>>,
}

impl std::fmt::Debug for DataContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataContext({})", self.store.budget())
    }
}

impl DataContext {
    /// A session with options from the environment (`BLOCKYARD_*`) and defaults for the rest.
    pub fn new() -> Result<Self> {
        let options = BlockyardOptions::from_env(std::env::vars())?;
        Self::with_config(Blockyard { options, ..Default::default() }, SessionConfig::from_env()?)
    }

    /// A session with given options and configuration of DataFusion; the environment is not read.
    pub fn with_config(blockyard: Blockyard, config: SessionConfig) -> Result<Self> {
        let functions = Arc::clone(&blockyard.functions);
        let rules = Arc::new(Mutex::new(blockyard.rules.clone()));
        let builder = SessionStateBuilder::new().with_config(config).with_default_features();
        let session = SessionContext::new_with_state(builder.with_blockyard(blockyard)?.build());
        let state = session.state();
        let extensions = state.config();
        let (Some(store), Some(pool), Some(scheduler), Some(observers)) = (
            extensions.get_extension::<BlockStore>(),
            extensions.get_extension::<SharedMemoryPool>(),
            extensions.get_extension::<Scheduler>(),
            extensions.get_extension::<Observers>(),
        ) else {
            return config_err!("the session has no block store");
        };
        let catalog = &state.config_options().catalog.default_catalog;
        if let Some(catalog) = session.catalog(catalog) {
            catalog.register_schema(SYSTEM_SCHEMA, system_schema(&store, &pool, &scheduler, &observers)?)?;
        }
        Ok(Self { session, store, scheduler, functions, rules })
    }

    /// The session of DataFusion underneath.
    pub fn session(&self) -> &SessionContext {
        &self.session
    }

    /// The block store, with what it holds and has spilled.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }

    /// The `blockyard.*` options as they are now.
    pub fn config(&self) -> BlockyardOptions {
        BlockyardOptions::from_config(self.session.state().config_options())
    }

    /// Changes options for datasets that are created from now on. The memory limit and the compression of spilled
    /// blocks take effect at once, for running queries too. Fails when the memory limit is too small, and when the
    /// spill directory changes, which only a new session can.
    pub fn configure(&self, change: impl FnOnce(&mut BlockyardOptions)) -> Result<()> {
        let mut options = self.config();
        let directory = options.spill_directory.clone();
        change(&mut options);
        if options.spill_directory != directory {
            return config_err!(
                "spill_directory cannot change while a session runs; set it in the options of a new one"
            );
        }
        let limit = options.memory_limit.bytes();
        let state = self.session.state_ref();
        let mut state = state.write();
        let config = state.config_mut();
        least_memory(limit, config.target_partitions())?;
        config.options_mut().execution.sort_spill_reservation_bytes =
            sort_merge_reservation(limit, config.target_partitions());
        self.scheduler.configure(&options, config.target_partitions())?;
        self.store.set_limit(limit)?;
        self.store.set_compression(options.spill_compression);
        self.store.directories().set_quota(options.spill_quota.bound() as u64);
        config.options_mut().extensions.insert(options);
        Ok(())
    }

    /// The optimizer rules beyond DataFusion's, as they are now.
    pub fn rules(&self) -> RuleRegistry {
        self.rules.lock().clone()
    }

    /// Adds or removes optimizer rules, for datasets that are created from now on. Nothing changes when a rule finds no
    /// place.
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

    /// Runs SQL statements separated by `;`. Definitions and settings take effect at once; the last query comes back as
    /// a lazy dataset.
    pub async fn sql(&self, statements: &str) -> Result<Dataset> {
        run_statements(self, statements).await
    }

    /// The integers `0 .. n` in a column `id`.
    pub fn range(&self, n: u64) -> Result<Dataset> {
        self.read_datasource(Arc::new(Range::try_new(n)?), None)
    }

    /// As [`DataContext::range`], in `num_blocks` blocks.
    pub fn range_in_blocks(&self, n: u64, num_blocks: usize) -> Result<Dataset> {
        self.read_datasource(Arc::new(Range::try_new(n)?), Some(num_blocks))
    }

    /// A source of your own, read in `num_blocks` tasks or as many as its size asks for.
    pub fn read_datasource(&self, source: Arc<dyn Datasource>, num_blocks: Option<usize>) -> Result<Dataset> {
        num_blocks.map_or(Ok(()), |n| check_num_blocks("num_blocks", n))?;
        let name = source.name().to_owned();
        self.scan(&name, Arc::new(DatasourceTable::new(source, num_blocks)))
    }

    /// Values of a type that serde can describe, one column per field.
    pub fn from_items<T: Row>(&self, items: Vec<T>) -> Result<Dataset> {
        let batch = batch_of_rows(&items)?;
        self.stored("FromItems", vec![Block::new(batch.schema(), vec![batch])])
    }

    /// Record batches of one schema, one block each. At least one, which may be empty.
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

    /// The rows that the last query with [`OnError::Divert`](crate::OnError::Divert) to this name has diverted, with
    /// the error (`_error`), the files that the task reads (`_file`), the number of the row among those of the task
    /// that came to the function (`_row`), and the task (`_task`). Fails when no query has.
    pub fn diverted(&self, name: &str) -> Result<Dataset> {
        self.scan("diverted", DivertedRows::new(Arc::clone(&self.store)).table(name)?)
    }

    /// A DataFrame of this session as a dataset.
    pub fn from_dataframe(&self, frame: DataFrame) -> Dataset {
        let (state, plan) = frame.into_parts();
        Dataset::new(self.clone(), state, plan)
    }

    /// Parquet files: paths, directories, globs or URLs.
    pub async fn read_parquet(&self, paths: impl Into<Paths>, options: ReadOptions) -> Result<Dataset> {
        self.read_files(FileKind::Parquet, paths.into(), options).await
    }

    /// CSV files: paths, directories, globs or URLs.
    pub async fn read_csv(&self, paths: impl Into<Paths>, options: ReadOptions) -> Result<Dataset> {
        self.read_files(FileKind::Csv, paths.into(), options).await
    }

    /// Files with one JSON object per line: paths, directories, globs or URLs.
    pub async fn read_json(&self, paths: impl Into<Paths>, options: ReadOptions) -> Result<Dataset> {
        self.read_files(FileKind::Json, paths.into(), options).await
    }

    async fn read_files(&self, kind: FileKind, paths: Paths, options: ReadOptions) -> Result<Dataset> {
        let table = FileTable::open(&self.session.state(), kind, &paths.0, &options).await?;
        let name = paths.0.first().map_or("files", |p| p.trim_end_matches('/').rsplit('/').next().unwrap_or(p));
        self.scan(name, Arc::new(table))
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
        self.functions.register(name, crate::functions::from_closure(f));
    }

    /// Makes a dataset a table of SQL. It stays lazy: each query runs it.
    pub fn register_dataset(&self, name: &str, dataset: &Dataset) -> Result<()> {
        self.session.register_table(name, dataset.clone().into_dataframe().into_view())?;
        Ok(())
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
