//! The wiring: what makes a session of DataFusion a Blockyard session. The only place that knows all rooms; none knows
//! it.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::common::{Result, config_err};
use datafusion::config::{ParquetOptions, SpillCompression as OperatorSpillCompression};
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::execution::context::SessionContext;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionConfig;

use crate::call::extension_of;
use crate::cloud::{CloudStores, StoreEnvironment};
use crate::cluster::ClusterClient;
use crate::config::{BlockyardOptions, ByteSize, MemoryLimit};
use crate::dataset::DataContext;
use crate::functions::{FunctionRegistry, bounded, mended};
use crate::observability::{ExecutionCallback, Observers, SYSTEM_SCHEMA, system_schema};
use crate::optimizer::RuleRegistry;
use crate::physical::Connector;
use crate::planner::{BlockyardQueryPlanner, block_formats};
use crate::runtime::{BackpressurePolicy, Scheduler, in_thread};
use crate::sources::ExternalTables;
use crate::sql::{BlockyardRelationPlanner, DateArithmetic, table_functions};
use crate::store::{Allocator, BlockStore, Budget, SharedMemoryPool, SpillDirectories};

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
    /// Variables that say how object stores are reached.
    pub environment: StoreEnvironment,
    /// The allocator of the process, if it can be told when memory is short.
    pub allocator: Option<Arc<dyn Allocator>>,
}

/// Adds Blockyard to any application of DataFusion.
pub trait SessionStateBuilderExt: Sized {
    /// Installs options, functions, rules, nodes, SQL, the block store and the memory pool, around the planner and
    /// rules that are there. Call it last.
    ///
    /// # Errors
    ///
    /// Where the spill directory cannot be used, or a rule finds no place.
    fn with_blockyard(self, blockyard: Blockyard) -> Result<Self>;
}

impl SessionStateBuilderExt for SessionStateBuilder {
    fn with_blockyard(mut self, blockyard: Blockyard) -> Result<Self> {
        let Blockyard { options, rules, functions, policies, callbacks, environment, allocator } = blockyard;
        let limit = options.memory_limit.bytes();
        let config = self.config().take().unwrap_or_default();
        options.check()?;
        min_memory(limit, config.target_partitions())?;
        let store = open_store(&options, allocator)?;
        let pool = Arc::new(SharedMemoryPool::new(Arc::clone(&store)));
        let existing = self.runtime_env().as_ref();
        let runtime = existing.map_or_else(RuntimeEnvBuilder::new, |known| RuntimeEnvBuilder::from_runtime_env(known));
        let registered = existing.map(|known| Ok(Arc::clone(&known.object_store_registry)));
        let registered = registered.unwrap_or_else(stores_of_this_machine)?;
        let stores = Arc::new(CloudStores::new(registered, environment, &options));
        let runtime =
            runtime.with_object_store_registry(Arc::clone(&stores) as _).with_memory_pool(Arc::clone(&pool) as _);
        // Lists of files would stay as they were first seen.
        let mut runtime = runtime.with_object_list_cache_limit(0).build()?;
        runtime.disk_manager = Arc::new(store.disk_manager()?);

        let mut config = honest_defaults(config, limit)?;
        config.set_extension(store);
        config.set_extension(Arc::new(Scheduler::new(policies, &options, config.target_partitions())?));
        config.set_extension(pool);
        config.set_extension(stores);
        config.set_extension(Arc::new(Observers::new(callbacks)));
        config.set_extension(Arc::new(Connector(Arc::new(ClusterClient::default()))));
        config.set_extension(functions);
        let table_functions = Arc::new(table_functions());
        config.set_extension(Arc::clone(&table_functions));
        let config = config.with_option_extension(options);

        let logical = rules.logical_rules_among(self.optimizer().take().map(|o| o.rules))?;
        let physical = rules.physical_rules_among(self.physical_optimizers().take().map(|o| o.rules))?;
        let planner = BlockyardQueryPlanner::wrapping(self.query_planner().take());
        let mut relations = self.relation_planners().take().unwrap_or_default();
        let runtime = Arc::new(runtime);
        self.expr_planners().get_or_insert_default().insert(0, Arc::new(DateArithmetic));
        let mut aggregates = self.aggregate_functions().take().unwrap_or_default();
        aggregates.extend(crate::aggregates::all());
        let ours = BlockyardRelationPlanner::new(table_functions, config.clone(), Arc::clone(&runtime));
        relations.insert(0, Arc::new(ours));
        let scalars = mended(self.scalar_functions().take().unwrap_or_default());
        let mut scalars = bounded(scalars);
        scalars.extend(crate::tensors::scalar_functions());
        let formats = with_ours(self.file_formats().take().unwrap_or_default());
        let mut tables = self.table_factories().take().unwrap_or_default();
        tables.extend(ExternalTables::factories());

        Ok(self
            .with_table_factories(tables)
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

/// The formats of an application with ours in the place of those of the same names.
fn with_ours(mut formats: Vec<Arc<dyn FileFormatFactory>>) -> Vec<Arc<dyn FileFormatFactory>> {
    let ours = block_formats();
    formats.retain(|format| !ours.iter().any(|o| o.get_ext() == format.get_ext()));
    formats.extend(ours);
    formats
}

/// Where files are read from that are not registered.
fn stores_of_this_machine() -> Result<Arc<dyn ObjectStoreRegistry>> {
    let stores = DefaultObjectStoreRegistry::new();
    #[cfg(target_os = "linux")]
    {
        let files = url::Url::parse("file:///").map_err(|error| datafusion::common::exec_datafusion_err!("{error}"))?;
        stores.register_store(&files, Arc::new(crate::disk::LocalFiles::new()));
    }
    Ok(Arc::new(stores))
}

/// The store of blocks, with the threads that look after it.
fn open_store(options: &BlockyardOptions, allocator: Option<Arc<dyn Allocator>>) -> Result<Arc<BlockStore>> {
    let roots: Vec<PathBuf> = directories(&options.spill_directory);
    let directories = SpillDirectories::open(&roots, options.spill_quota.bound() as u64)?;
    let budget = Arc::new(Budget::new(options.memory_limit.bytes()).with_allocator(allocator));
    if let Some(watch) = Budget::watch(&budget) {
        in_thread("blockyard-memory", watch)?;
    }
    let store = Arc::new(BlockStore::new(budget, Arc::new(directories), options.spill_compression));
    in_thread("blockyard-spill", BlockStore::write_behind(&store))?;
    Ok(store)
}

/// The directories of a list with commas.
fn directories(list: &str) -> Vec<PathBuf> {
    list.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Settings of DataFusion without which results or limits would not hold (see the traps in
/// docs/decisions/datafusion-55.md), or much would take longer.
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
    // What is never null for one half of DataFusion may be for the other, as `x IS TRUE`.
    options.execution.skip_physical_aggregate_schema_check = true;
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
fn min_memory(limit: usize, partitions: usize) -> Result<()> {
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

impl DataContext {
    /// A session with options from the environment (`BLOCKYARD_*`, and those of object stores) and defaults for the
    /// rest.
    ///
    /// # Errors
    ///
    /// Where a variable does not parse, or the spill directory cannot be used.
    pub fn new() -> Result<Self> {
        let environment: Vec<_> = std::env::vars().collect();
        let options = BlockyardOptions::from_env(environment.iter().cloned())?;
        let environment = environment.into_iter().collect();
        Self::with_config(Blockyard { options, environment, ..Default::default() }, SessionConfig::from_env()?)
    }

    /// A session with given options and configuration of DataFusion; the environment is not read.
    ///
    /// # Errors
    ///
    /// Where the options do not fit together, or the spill directory cannot be used.
    pub fn with_config(blockyard: Blockyard, config: SessionConfig) -> Result<Self> {
        let rules = blockyard.rules.clone();
        let builder = SessionStateBuilder::new().with_config(config).with_default_features();
        let session = SessionContext::new_with_state(builder.with_blockyard(blockyard)?.build());
        let state = session.state();
        let extensions = state.config();
        let (Some(pool), Some(observers)) =
            (extensions.get_extension::<SharedMemoryPool>(), extensions.get_extension::<Observers>())
        else {
            return config_err!("the session has no memory pool");
        };
        let context = Self::around(session, rules)?;
        let catalog = &state.config_options().catalog.default_catalog;
        if let Some(catalog) = context.session().catalog(catalog) {
            let scheduler = extension_of(&state)?;
            catalog.register_schema(
                SYSTEM_SCHEMA,
                system_schema(context.store(), &pool, &scheduler, &observers, context.stores())?,
            )?;
        }
        Ok(context)
    }

    /// A session beside this one in the same memory, with settings of its own, the functions of this one, and without
    /// tables. Fails where a setting is unknown, or has no such value.
    pub(crate) fn forked(&self, settings: &[(String, String)]) -> Result<Self> {
        let state = self.session().state();
        let mut config = state.config().clone();
        for (key, value) in settings {
            config.options_mut().set(key, value)?;
        }
        config.set_extension(Arc::new(self.functions().forked()));
        // The first of them is ours, and finds functions by the session that it is of.
        let (functions, runtime) = (Arc::clone(self.table_functions()), Arc::clone(state.runtime_env()));
        let ours = Arc::new(BlockyardRelationPlanner::new(functions, config.clone(), runtime));
        let others = state.relation_planners().iter().skip(1).cloned();
        let relations = std::iter::once(ours as _).chain(others).collect();
        let state = SessionStateBuilder::new_from_existing(state)
            .with_config(config)
            .with_relation_planners(relations)
            .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
            .build();
        Self::around(SessionContext::new_with_state(state), self.rules())
    }

    /// Has plans made for no more memory than this, whatever the option says: that is as the session has it which asks.
    pub(crate) fn plan_within(&self, most: usize) {
        let mut options = self.config();
        if options.memory_limit.bytes() > most {
            options.memory_limit = MemoryLimit::Bytes(ByteSize(most));
            self.session().state_ref().write().config_mut().options_mut().extensions.insert(options);
        }
    }

    /// Changes options for datasets that are created from now on. The memory limit and the compression of spilled
    /// blocks take effect at once, for running queries too.
    ///
    /// # Errors
    ///
    /// Where a value makes no sense, the memory limit is too small, and where the spill directory changes, which only
    /// a new session can.
    pub fn configure(&self, change: impl FnOnce(&mut BlockyardOptions)) -> Result<()> {
        let mut options = self.config();
        let directory = options.spill_directory.clone();
        change(&mut options);
        options.check()?;
        if options.spill_directory != directory {
            return config_err!(
                "spill_directory cannot change while a session runs; set it in the options of a new one"
            );
        }
        let limit = options.memory_limit.bytes();
        let state = self.session().state_ref();
        let mut state = state.write();
        let config = state.config_mut();
        min_memory(limit, config.target_partitions())?;
        config.options_mut().execution.sort_spill_reservation_bytes =
            sort_merge_reservation(limit, config.target_partitions());
        self.scheduler().configure(&options, config.target_partitions())?;
        self.stores().configure(&options);
        self.store().set_limit(limit)?;
        self.store().set_compression(options.spill_compression);
        self.store().directories().set_quota(options.spill_quota.bound() as u64);
        config.options_mut().extensions.insert(options);
        Ok(())
    }
}
