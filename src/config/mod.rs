//! The `blockyard.*` options: one typed struct, set by SQL (`SET blockyard.x = ..`), by code
//! ([`BlockyardOptions`]) or by the environment (`BLOCKYARD_X`, read in one place: [`BlockyardOptions::from_env`]).

mod values;

use std::any::Any;
use std::sync::OnceLock;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigField, ConfigOptions, ExtensionOptions};
use datafusion::common::{DataFusionError, Result, config_err};
use datafusion::execution::TaskContext;

pub use values::{BlockSizePreset, ByteSize, MaxErroredBlocks, MemoryLimit, ResourceLimit, SpillCompression, TimeSpan};
pub(crate) use values::{check_num_blocks, parse_resources};

/// Makes the struct of options. DataFusion's own macro lists options without their prefix, by which `SHOW` looks for
/// them.
macro_rules! options {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])* pub $field:ident : $type:ty, default = $default:expr )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl ExtensionOptions for $name {
            fn as_any(&self) -> &dyn Any {
                self
            }

            fn as_any_mut(&mut self) -> &mut dyn Any {
                self
            }

            fn cloned(&self) -> Box<dyn ExtensionOptions> {
                Box::new(self.clone())
            }

            fn set(&mut self, key: &str, value: &str) -> Result<()> {
                let before = self.clone();
                // Ray writes `resource_limits.cpu`.
                match key.replace('.', "_").as_str() {
                    $( stringify!($field) => ConfigField::set(&mut self.$field, "", value)?, )*
                    _ => return Err(crate::error::unknown_name("option", key, Self::PREFIX, &[$( stringify!($field) ),*])),
                }
                // What is refused has not been set.
                self.was_set(key).inspect_err(|_| *self = before)
            }

            fn entries(&self) -> Vec<ConfigEntry> {
                vec![$( ConfigEntry {
                    key: format!("{}.{}", Self::PREFIX, stringify!($field)),
                    value: Some(self.$field.to_string()),
                    description: concat!($( $doc ),*).trim(),
                } ),*]
            }
        }
    };
}

options! {
    /// Options of the engine. They are fixed for a Dataset when it is created: later changes of the session do not
    /// reach it.
    pub struct BlockyardOptions {
        /// Bytes above which a block is emitted; a block is cut when it has 1.5 times as many. 0 or `infinite` gives
        /// one block per task, which then has to fit in memory. Otherwise a quarter of a thread's share of the memory
        /// is the most that a block aims at.
        pub target_max_block_size: ByteSize, default = ByteSize::mib(128)

        /// Bytes below which a read is not split into more blocks.
        pub target_min_block_size: ByteSize, default = ByteSize::mib(1)

        /// Bytes that an output task of a random shuffle aims at.
        pub target_shuffle_max_block_size: ByteSize, default = ByteSize::mib(1024)

        /// Sets the three block sizes for a kind of work: `etl_processing`, `image_processing`, `large_analytics`,
        /// `memory_constrained` or `shuffle_heavy`. Sizes that are set later stand.
        pub block_size_preset: BlockSizePreset, default = BlockSizePreset::Default

        /// Number of read tasks that a read aims at when its blocks would not get smaller than `target_min_block_size`.
        pub read_op_min_num_blocks: usize, default = 200

        /// Logical CPUs of this machine, which give the least number of read tasks (two per CPU). Not the number of
        /// threads: results that depend on read tasks must not change with it.
        pub num_cpus: usize, default = available_cpus()

        /// Logical CPUs of a read task that is a stage of its own. Reads mostly wait for files, so that two of them run
        /// for each CPU by default.
        pub read_num_cpus: f64, default = 0.5

        /// GPUs of this machine that tasks can ask for. They are logical: they say how many tasks run at once.
        pub num_gpus: f64, default = 0.0

        /// Other resources that tasks can ask for by name, like `license=2, scratch=1`.
        pub resources: String, default = String::new()

        /// The most CPUs that the tasks of one query have at once: a number, a percentage or `infinite`.
        pub resource_limits_cpu: ResourceLimit, default = ResourceLimit::Infinite

        /// The most GPUs that the tasks of one query have at once: a number, a percentage or `infinite`.
        pub resource_limits_gpu: ResourceLimit, default = ResourceLimit::Infinite

        /// The most memory that the tasks of one query say they need at once: a size, a percentage or `infinite`.
        pub resource_limits_memory: ResourceLimit, default = ResourceLimit::Infinite

        /// The most bytes of blocks that wait between the stages of one query: a size, a percentage of the memory limit
        /// or `infinite`.
        pub resource_limits_object_store_memory: ResourceLimit, default = ResourceLimit::Infinite

        /// Memory for blocks and operators together: a size, or a percentage of the memory of the machine or its
        /// control group.
        pub memory_limit: MemoryLimit, default = MemoryLimit::Percent(60)

        /// Directories for spilled blocks and operators, separated by commas and used in turn. Empty means the
        /// temporary directory of the system.
        pub spill_directory: String, default = String::new()

        /// The most bytes that spilled blocks and operators may take on disk together. 0 or `infinite` means no quota.
        pub spill_quota: ByteSize, default = ByteSize(0)

        /// Compression of spilled blocks of which a sample shrinks by at least a quarter: none, lz4 or zstd.
        pub spill_compression: SpillCompression, default = SpillCompression::Lz4

        /// Plan every join that can spill as one that does, not only those that are not expected to fit in memory.
        pub prefer_spilling_joins: bool, default = false

        /// Sort all rows, which spills, where only the first of them are wanted, not only where these are not expected
        /// to fit in memory.
        pub prefer_spilling_sorts: bool, default = false

        /// Plan so that rows come in the same order whenever the plan runs, and so that it can begin in its middle:
        /// rows with equal keys keep their order in sorts, also where they are few. Iterators do.
        pub prefer_resumable_plans: bool, default = false

        /// Give blocks to the consumer in the order of their ids (the order of the input), instead of as they come.
        pub preserve_order: bool, default = true

        /// What holds stages back, separated by commas: `concurrency_cap` or `adaptive_concurrency_cap`,
        /// `resource_budget`, `downstream_capacity`.
        pub backpressure_policies: String, default = "concurrency_cap, resource_budget, downstream_capacity".to_owned()

        /// Which stage starts the next task: the one with the fewest bytes in its out queue (`out_queue`), or with the
        /// fewest bytes altogether (`memory`).
        pub scheduler_ranking: String, default = "out_queue".to_owned()

        /// Blocks of one query that may be lost because a function or a read failed for their task. -1 or `infinite`
        /// means any number.
        pub max_errored_blocks: MaxErroredBlocks, default = MaxErroredBlocks(Some(0))

        /// Errors of functions after which the same batch is tried again: parts of their text, separated by commas; `*`
        /// means all.
        pub retried_map_errors: String, default = String::new()

        /// How often a batch is tried again.
        pub max_map_retries: usize, default = 3

        /// Errors of reads and writes after which they are tried again, after a pause that doubles: parts of their
        /// text, separated by commas.
        pub retried_io_errors: String,
            default = "connection reset, connection refused, timed out, slow down, slowdown, (500), (502), (503), (504)"
                .to_owned()

        /// How often a read or a write is tried again.
        pub max_io_retries: usize, default = 10

        /// Requests that one object store gets at once. Half as many after it has refused one for their number (429 or
        /// 503), and one more for each second in which it has not.
        pub store_concurrency: usize, default = 64

        /// The most bytes of small files of an object store that a read has asked for before somebody wants them; at
        /// most a sixteenth of the memory limit.
        pub read_ahead_bytes: ByteSize, default = ByteSize::mib(64)

        /// For how long an object store may take to answer a call.
        pub store_connect_timeout: TimeSpan, default = TimeSpan::from_secs(5)

        /// For how long an object store may send nothing within a request. A whole object may take longer.
        pub store_read_timeout: TimeSpan, default = TimeSpan::from_secs(30)

        /// How often a request to an object store is made again that has failed in a way in which it may succeed.
        pub store_max_retries: usize, default = 10

        /// After so long a request to an object store is not made again.
        pub store_retry_timeout: TimeSpan, default = TimeSpan::from_secs(180)

        /// How often an actor that could not be built is tried again, after a pause that doubles.
        pub actor_init_max_retries: usize, default = 3

        /// Seconds after which a query fails whose stages run nothing and neither begin nor end anything. 0 means
        /// never.
        pub execution_no_progress_timeout_s: usize, default = 1800

        /// The executors that run stages of queries, separated by commas: `tls:10.0.0.2:7070`, `tcp:10.0.0.2:7070` or
        /// `unix:PATH` of each.
        /// Empty means that this process runs all.
        pub cluster: String, default = String::new()

        /// A file with the token that executors want to see. Those at `unix:PATH` want none.
        pub cluster_token_file: String, default = String::new()

        /// Show the token to executors at `tcp:` of other machines, where nothing is encrypted.
        pub cluster_insecure: bool, default = false

        /// A file in PEM with the certificates that have signed those of the executors at `tls:`, which may be these
        /// themselves. Others are not believed.
        pub cluster_tls_ca: String, default = String::new()

        /// Rows from which on joins, groups, windows, shuffles and sorts are made by executors. Fewer come to this
        /// process.
        pub cluster_exchange_min_rows: usize, default = 100_000

        /// Fuse chains of map operators into one stage.
        pub optimize_fuse_stages: bool, default = true

        /// Fuse a read with the map operators above it.
        pub optimize_fuse_read_stages: bool, default = true

        /// Fuse an all-to-all operator with the map operators below it.
        pub optimize_fuse_shuffle_stages: bool, default = true

        /// Move `randomize_block_order` behind the map operators above it.
        pub optimize_reorder_stages: bool, default = true

        /// Join several tables in another order than that of the text, where that is expected to be at most half as
        /// much work, and build the tables of joins of the sides that are expected to be smaller.
        pub optimize_join_order: bool, default = true

        /// Evaluate filters while Parquet is decoded, and decode other columns only of the rows that pass, where the
        /// first tasks show that this is faster.
        pub optimize_late_materialization: bool, default = true

        /// Read small row groups of local Parquet files in fewer tasks below joins, aggregates and repartitions.
        pub optimize_fewer_tasks: bool, default = true

        /// Group the rows of one side of joins before they are joined, where that is expected to be less work than to
        /// group them by what the joins add, as names.
        pub optimize_group_before_joins: bool, default = true

        /// Make the groups of the coarser sets of ROLLUP, CUBE and GROUPING SETS from those of finer ones, in place of
        /// taking each row once for each set.
        pub optimize_rolled_up_groups: bool, default = true

        /// Sort what fits in memory by its keys as numbers, in parts that fit the cache, in place of merging sorted
        /// batches.
        pub optimize_sorts_in_memory: bool, default = true

        /// Drop rows before they are exchanged and sorted for `row_number`, `rank` or `dense_rank`, where a condition
        /// asks for the first of each group only.
        pub optimize_top_of_groups: bool, default = true

        /// Group by numbers in place of texts of the small side of a join, which many rows of the other side find.
        pub optimize_coded_texts: bool, default = true

        /// Compute sub-plans that group or have windows, and that a query has several times, once.
        pub optimize_shared_subplans: bool, default = true

        /// Take rows once of which a query has several aggregates, as values or side by side in FROM, where their
        /// conditions differ only in what they ask of the same columns.
        pub optimize_merged_aggregates: bool, default = true

        /// Evaluate windows that begin with the partition and end with the row or its peers (running sums, ranks) in
        /// loops over the rows, in place of DataFusion's operator for them.
        pub optimize_cumulative_windows: bool, default = true

        /// Take each key about once of the side of a semi or anti join (`IN`, `EXISTS` and their opposites) that only
        /// says which keys there are.
        pub optimize_distinct_keys: bool, default = true

        /// Evaluate comparisons of numbers and times before the other conditions of a filter.
        pub optimize_condition_order: bool, default = true

        /// Compute sums, differences and products of decimals in 64 bits where the values of a batch have room in them.
        pub optimize_narrow_decimals: bool, default = true
    }
}

impl ConfigExtension for BlockyardOptions {
    const PREFIX: &'static str = "blockyard";
}

/// The option that sets others.
const PRESET_KEY: &str = "block_size_preset";

/// CPUs that a machine may be said to have: each may get a thread.
const MAX_CPUS: usize = 1024;

impl BlockyardOptions {
    /// The options of a session's configuration, or the defaults where Blockyard was not installed.
    pub fn from_config(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// The options that a running task sees.
    pub fn from_task(context: &TaskContext) -> Self {
        Self::from_config(context.session_config().options())
    }

    /// Defaults overridden by `BLOCKYARD_<OPTION>` variables of the given environment. The only place that reads the
    /// environment; a value that does not parse is an error which names the variable.
    ///
    /// # Errors
    ///
    /// Where a value does not parse; the error names the variable.
    pub fn from_env(vars: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut options = Self::default();
        let ours = vars.into_iter().filter_map(|(name, value)| {
            let key = name.strip_prefix("BLOCKYARD_")?.to_lowercase();
            Some((name, key, value))
        });
        let mut ours: Vec<_> = ours.collect();
        // Variables have no order: a preset comes before the sizes that replace its own.
        ours.sort_by_key(|(_, key, _)| key != PRESET_KEY);
        for (name, key, value) in ours {
            ExtensionOptions::set(&mut options, &key, &value)
                .map_err(|e| DataFusionError::Configuration(format!("environment variable {name}: {}", e.message())))?;
        }
        Ok(options)
    }

    /// Sets what follows from an option; an error if it makes no sense.
    fn was_set(&mut self, key: &str) -> Result<()> {
        if key == PRESET_KEY {
            self.use_preset(self.block_size_preset);
        }
        self.check()
    }

    /// Fails where a value makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MAX_CPUS).contains(&self.num_cpus) {
            return config_err!("num_cpus must be between 1 and {MAX_CPUS}, got {}", self.num_cpus);
        }
        if self.store_concurrency == 0 {
            return config_err!("store_concurrency must be at least 1, got 0");
        }
        check_num_blocks("read_op_min_num_blocks", self.read_op_min_num_blocks)
    }

    /// Sets the block sizes for a kind of work; returns a description.
    pub fn use_preset(&mut self, preset: BlockSizePreset) -> String {
        let (most, least, shuffle, why) = preset.sizes();
        self.block_size_preset = preset;
        self.target_max_block_size = ByteSize::mib(most);
        self.target_min_block_size = ByteSize::mib(least);
        self.target_shuffle_max_block_size = ByteSize::mib(shuffle);
        format!("{preset}: blocks of {least} to {most} MiB, shuffles of {shuffle} MiB; {why}")
    }

    /// Bytes that blocks aim at when `threads` tasks run at once: `target_max_block_size`, but not more than a quarter
    /// of a task's share of the memory, because a task has its input, the block that it fills and what it encodes.
    pub fn block_bytes(&self, threads: usize) -> usize {
        self.block_bytes_within(self.memory_limit.bytes(), threads)
    }

    /// As [`BlockyardOptions::block_bytes`] for a query that has `memory` bytes.
    pub(crate) fn block_bytes_within(&self, memory: usize, threads: usize) -> usize {
        match self.target_max_block_size.bound() {
            usize::MAX => usize::MAX,
            bytes => bytes.min(memory / (4 * threads.max(1))).max(1),
        }
    }

    /// Names of all options, with the prefix.
    pub fn keys() -> Vec<String> {
        Self::default().entries().into_iter().map(|e| e.key).collect()
    }
}

/// The most bytes of memory that this process may count on: of its control group where that has a limit, else of the
/// machine.
pub fn machine_memory() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(read_machine_memory)
}

fn read_machine_memory() -> usize {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<usize>().ok()
        })
        .map_or(8 << 30, |kib| kib << 10);
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .find_map(|text| text.trim().parse::<usize>().ok());
    group.map_or(machine, |limit| limit.min(machine))
}

fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_set_the_sizes_and_say_so() {
        let mut options = BlockyardOptions::default();
        ExtensionOptions::set(&mut options, "block_size_preset", "memory_constrained").unwrap();
        assert_eq!(
            (options.target_max_block_size, options.target_min_block_size),
            (ByteSize::mib(64), ByteSize::mib(16))
        );
        let text = options.use_preset(BlockSizePreset::LargeAnalytics);
        assert_eq!(
            text,
            "large_analytics: blocks of 128 to 512 MiB, shuffles of 1024 MiB; as few blocks as memory allows"
        );
        let error = ExtensionOptions::set(&mut options, "block_size_preset", "etl").unwrap_err().to_string();
        assert!(error.contains("etl"), "{error}");
        let plain = BlockyardOptions::default();
        options.use_preset(BlockSizePreset::Default);
        assert_eq!(options.target_min_block_size, plain.target_min_block_size);
        assert_eq!(options.target_shuffle_max_block_size, plain.target_shuffle_max_block_size);
    }

    #[test]
    fn blocks_are_bounded_by_the_memory() {
        let mut options =
            BlockyardOptions { memory_limit: MemoryLimit::Bytes(ByteSize::mib(64)), ..Default::default() };
        assert_eq!(options.block_bytes(2), 8 << 20);
        options.memory_limit = MemoryLimit::Bytes(ByteSize::mib(64 << 10));
        assert_eq!(options.block_bytes(2), 128 << 20);
        options.target_max_block_size = ByteSize(0);
        assert_eq!(options.block_bytes(2), usize::MAX);
    }

    #[test]
    fn environment_sets_options_and_names_what_is_wrong() {
        let vars = [("BLOCKYARD_TARGET_MAX_BLOCK_SIZE".to_owned(), "64MiB".to_owned()), ("HOME".into(), "/".into())];
        assert_eq!(BlockyardOptions::from_env(vars.clone()).unwrap().target_max_block_size, ByteSize::mib(64));
        let preset = ("BLOCKYARD_BLOCK_SIZE_PRESET".to_owned(), "large_analytics".to_owned());
        let options = BlockyardOptions::from_env(vars.into_iter().chain([preset])).unwrap();
        assert_eq!(options.target_max_block_size, ByteSize::mib(64), "the size stands, whatever comes first");
        assert_eq!(options.target_min_block_size, ByteSize::mib(128));
        let error = BlockyardOptions::from_env([("BLOCKYARD_NUM_CPUS".to_owned(), "many".to_owned())]).unwrap_err();
        assert!(error.to_string().contains("BLOCKYARD_NUM_CPUS"), "{error}");
    }

    #[test]
    fn numbers_without_a_sense_are_refused() {
        let mut options = BlockyardOptions::default();
        for (key, value, message) in [
            ("num_cpus", "0", "num_cpus must be between 1 and 1024, got 0"),
            ("num_cpus", "1000000", "num_cpus must be between 1 and 1024"),
            ("read_op_min_num_blocks", "1000000000", "read_op_min_num_blocks must be at most 1000000"),
        ] {
            let error = ExtensionOptions::set(&mut options, key, value).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn keys_may_have_dots_where_ray_has_them() {
        let mut options = BlockyardOptions::default();
        ExtensionOptions::set(&mut options, "resource_limits.cpu", "80%").unwrap();
        assert_eq!(options.resource_limits_cpu, ResourceLimit::Percent(80.0));
    }
}
