//! Plans the relations that are ours: table functions and samples; and refuses modifiers that nobody would act on.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, ScalarValue, TableReference, not_impl_err, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::{Expr, ObjectName, TableAlias, TableFactor};

use super::arguments::Arguments;
use super::column_types::column_types;
use super::messages::check_outer_call;
use super::normalise::signature_of;
use super::sample::sample_of;
use super::signatures::Signature;
use super::{names, set_operations};
use crate::config::{check_num_blocks, parse_resources};
use crate::functions::{Compute, ComputeStrategy, Failures, FunctionRegistry, MapOptions};
use crate::logical::{
    MapNode, MapOperator, MixNode, MixOptions, RandomShuffleNode, RandomizeBlocksNode, RepartitionNode, Repartitioning,
    ZipNode, extension, map_groups, summary,
};
use crate::runtime::block_on_io;
use crate::seed::{RandomSeed, fresh_seed};
use crate::sources::{Datasource, DatasourceTable, DivertedRows, FileKind, FileTable, Range, ReadOptions};

/// Plans our relations. DataFusion asks it first for every item of FROM.
pub(crate) struct BlockyardRelationPlanner {
    functions: Arc<FunctionRegistry>,
    runtime: Arc<RuntimeEnv>,
    diverted: DivertedRows,
}

impl BlockyardRelationPlanner {
    /// A planner that finds functions in `functions`, and files through `runtime`.
    pub(crate) fn new(functions: Arc<FunctionRegistry>, runtime: Arc<RuntimeEnv>, diverted: DivertedRows) -> Self {
        Self { functions, runtime, diverted }
    }
}

impl fmt::Debug for BlockyardRelationPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockyardRelationPlanner")
    }
}

impl RelationPlanner for BlockyardRelationPlanner {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        refuse_modifiers(&relation)?;
        if let Some(sample) = take_sample(&mut relation) {
            let (fraction, seed) = sample_of(&sample)?;
            let alias = take_alias(&mut relation);
            let input = context.plan(relation)?;
            let operator = MapOperator::Sample { fraction, seed: seed.unwrap_or_else(fresh_seed) };
            return planned(
                extension(MapNode::try_new(input, operator, Compute::default(), Failures::default())?),
                alias,
            );
        }
        if let TableFactor::Table { name, alias, args: None, .. } = &relation
            && let Some(path) = quoted_path(name)
        {
            let plan = self.open(path, context)?;
            return planned(plan, alias.clone());
        }
        if let Some(plan) = set_operations::plan(&relation, context)? {
            return planned(plan, None);
        }
        let TableFactor::Table { name, alias, args: Some(args), .. } = &relation else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let Some(signature) = signature_of(name) else {
            check_outer_call(name, &args.args, context)?;
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        // DataFusion's own range(start, end, step) stays.
        if signature.name == "range" && args.args.len() > 1 && args.args.iter().all(is_positional) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        let arguments = Arguments::parse(signature, args.args.clone())?;
        let called = names::name_of_call(signature.name, &args.args);
        let plan = self.plan_function(signature, &arguments, &called, context)?;
        planned(plan, alias.clone())
    }
}

/// What `repartition` is asked for: one way of several.
fn repartitioning(arguments: &Arguments) -> Result<Repartitioning> {
    let (shuffle, sort, strict) = (arguments.flag("shuffle"), arguments.flag("sort"), arguments.flag("strict"));
    let (num_blocks, keys) = (arguments.size("num_blocks"), arguments.texts("keys"));
    let rows = arguments.size("target_num_rows_per_block");
    let bytes = arguments.bytes("target_bytes_per_block")?.map(|bytes| bytes.0);
    if let Some(boundaries) = arguments.written_texts("boundaries") {
        let others = [shuffle, sort, strict].iter().any(Option::is_some) || num_blocks.or(rows).or(bytes).is_some();
        return match keys {
            Some(keys) if !others => {
                let boundaries = boundaries.into_iter().map(ScalarValue::from).collect();
                Ok(Repartitioning::Ranges { keys, boundaries })
            }
            Some(_) => plan_err!("repartition takes boundaries with keys and nothing else"),
            None => plan_err!("repartition needs the keys that boundaries are for"),
        };
    }
    match (keys, num_blocks, rows, bytes) {
        (Some(_), ..) if shuffle.is_some() => plan_err!("repartition takes keys or shuffle, not both"),
        (None, ..) if sort.is_some() => plan_err!("repartition sorts by keys, which are not given"),
        (_, _, None, _) if strict.is_some() => {
            plan_err!("repartition is strict about target_num_rows_per_block, which is not given")
        }
        (Some(keys), num_blocks, None, None) => {
            Ok(Repartitioning::Keys { keys, num_blocks, sort: sort.unwrap_or(false) })
        }
        (None, Some(num_blocks), None, None) => {
            Ok(Repartitioning::Blocks { num_blocks, shuffle: shuffle.unwrap_or(false) })
        }
        (None, None, Some(_), _) | (None, None, _, Some(_)) if shuffle.is_some() => {
            plan_err!("repartition shuffles into num_blocks, not into blocks of some size")
        }
        (None, None, Some(target_num_rows_per_block), None) => {
            Ok(Repartitioning::Rows { target_num_rows_per_block, strict: strict.unwrap_or(false) })
        }
        (None, None, None, Some(target_bytes_per_block)) => Ok(Repartitioning::Bytes { target_bytes_per_block }),
        (None, None, None, None) => plan_err!(
            "repartition needs one of the arguments 'num_blocks', 'keys', 'target_num_rows_per_block' and \
             'target_bytes_per_block'"
        ),
        _ => plan_err!(
            "repartition takes num_blocks and keys, or target_num_rows_per_block, or target_bytes_per_block, not several"
        ),
    }
}

fn planned(plan: LogicalPlan, alias: Option<TableAlias>) -> Result<RelationPlanning> {
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
}

fn is_positional(arg: &datafusion::sql::sqlparser::ast::FunctionArg) -> bool {
    matches!(arg, datafusion::sql::sqlparser::ast::FunctionArg::Unnamed(_))
}

impl BlockyardRelationPlanner {
    fn plan_function(
        &self,
        signature: &Signature,
        arguments: &Arguments,
        called: &str,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<LogicalPlan> {
        let mut table = |index: usize| plan_table(&arguments.tables[index], signature.name, context);
        let num_blocks = arguments.size("num_blocks");
        let (seed, epoch) = (arguments.count("seed"), arguments.count("epoch"));
        if seed.is_none() && epoch.is_some() {
            return plan_err!("{} needs a seed for an epoch", signature.name);
        }
        let seed = || RandomSeed::from(seed).epoch(epoch.unwrap_or(0));
        match signature.name {
            "map_batches" => {
                let name = arguments.text("function").unwrap_or_default();
                let options = map_options(arguments, self.functions.defaults(name)?)?;
                let function = options.apply(self.functions.get(name)?);
                let compute = options.compute(&function)?;
                let operator = MapOperator::Batches(function, options.batch_size);
                Ok(extension(MapNode::try_new(table(0)?, operator, compute, options.failures()?)?))
            }
            "map_groups" => {
                let name = arguments.text("function").unwrap_or_default();
                let options = map_options(arguments, self.functions.defaults(name)?)?;
                let keys = arguments.texts("keys").unwrap_or_default();
                map_groups(table(0)?, keys, self.functions.get(name)?, &options)
            }
            "random_shuffle" => Ok(extension(RandomShuffleNode::try_new(table(0)?, seed(), num_blocks)?)),
            "repartition" => Ok(extension(RepartitionNode::try_new(table(0)?, repartitioning(arguments)?)?)),
            "randomize_block_order" => {
                Ok(extension(RandomizeBlocksNode::try_new(table(0)?, seed(), arguments.size("window"))?))
            }
            "summary" => summary(table(0)?),
            "diverted" => {
                let name = arguments.text("name").unwrap_or_default();
                scan(called, self.diverted.table(name)?)
            }
            "zip" | "mix" => {
                let tables = (0..arguments.tables.len()).map(table).collect::<Result<Vec<_>>>()?;
                if signature.name == "zip" {
                    return Ok(extension(ZipNode::try_new(tables)?));
                }
                let stopping = arguments.text("stopping_condition").map(str::parse).transpose()?;
                let options = MixOptions {
                    weights: arguments.numbers("weights").unwrap_or_default(),
                    stopping_condition: stopping.unwrap_or_default(),
                };
                Ok(extension(MixNode::try_new(tables, options)?))
            }
            "range" => source(called, Arc::new(Range::try_new(arguments.count("n").unwrap_or_default())?), arguments),
            #[cfg(feature = "tpch")]
            "tpch" => {
                let (table, scale) = (arguments.text("table").unwrap_or_default(), arguments.number("scale"));
                source(called, Arc::new(crate::sources::Tpch::try_new(table, scale.unwrap_or_default())?), arguments)
            }
            "read_parquet" => self.read(FileKind::Parquet, arguments, called, context),
            "read_csv" => self.read(FileKind::Csv, arguments, called, context),
            "read_json" => self.read(FileKind::Json, arguments, called, context),
            other => plan_err!("unknown table function '{other}'"),
        }
    }

    fn read(
        &self,
        kind: FileKind,
        arguments: &Arguments,
        called: &str,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<LogicalPlan> {
        let delimiter = match arguments.text("delimiter").map(str::as_bytes) {
            None => None,
            Some([byte]) => Some(*byte),
            Some(_) => return plan_err!("argument 'delimiter' must be one ASCII character"),
        };
        let options = ReadOptions {
            columns: arguments.texts("columns"),
            override_num_blocks: arguments.size("override_num_blocks"),
            include_paths: arguments.flag("include_paths").unwrap_or(false),
            has_header: arguments.flag("has_header"),
            delimiter,
            newlines_in_values: arguments.flag("newlines_in_values").unwrap_or(false),
            types: arguments.text("types").map(|text| column_types(text, context)).transpose()?.unwrap_or_default(),
        };
        let paths = arguments.texts("paths").unwrap_or_default();
        let session = self.session(context);
        let table = block_on_io(async move { FileTable::open(&session, kind, &paths, &options).await })?;
        scan(called, Arc::new(table))
    }

    /// `FROM 'dir/*.parquet'`.
    fn open(&self, path: String, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
        let Some(kind) = FileKind::of_path(&path) else {
            return plan_err!(
                "'{path}' is not the path of a Parquet, CSV or JSON file, nor of a directory of such files"
            );
        };
        let session = self.session(context);
        let options = ReadOptions::default();
        let called = names::name_of_path(&path, "files");
        let table = block_on_io(async move { FileTable::open(&session, kind, &[path], &options).await })?;
        scan(&called, Arc::new(table))
    }

    /// A session to list and open files with: planning does not see the one that it is part of.
    fn session(&self, context: &dyn RelationPlannerContext) -> SessionState {
        let config = SessionConfig::from(context.context_provider().options().clone());
        SessionStateBuilder::new().with_config(config).with_runtime_env(Arc::clone(&self.runtime)).build()
    }
}

/// What the arguments of a call say of a map operator, with what `defaults` say where they do not.
pub(super) fn map_options(arguments: &Arguments, defaults: MapOptions) -> Result<MapOptions> {
    let failures = Failures { on_error: defaults.on_error.clone(), max_errors: defaults.max_errors };
    let said: Vec<_> = failures.arguments();
    let default = |name: &str| said.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let on_error = arguments.text("on_error");
    // Another way to put up with errors has no use for the details of the default.
    let keeps = |name: &str| match (on_error, name) {
        (Some("fail"), _) => None,
        (Some(other), "divert_to") if other != "divert" => None,
        _ => default(name),
    };
    let failures = Failures::parse(
        on_error.or(default("on_error")),
        arguments.text("divert_to").or(keeps("divert_to")),
        arguments.written_text("max_errors").or(keeps("max_errors")),
    )?;
    let resources = arguments.text("resources").map(parse_resources).transpose()?;
    let said = MapOptions {
        batch_size: arguments.batch_size("batch_size"),
        compute: arguments.text("compute").map_or(Ok(ComputeStrategy::Auto), str::parse)?,
        concurrency: arguments.concurrency("concurrency"),
        num_cpus: arguments.number("num_cpus"),
        num_gpus: arguments.number("num_gpus"),
        memory: arguments.bytes("memory")?,
        resources: resources.unwrap_or_default(),
        max_tasks_in_flight_per_actor: arguments.size("max_tasks_in_flight_per_actor"),
        max_concurrency: arguments.size("max_concurrency"),
        ..Default::default()
    };
    let Failures { on_error, max_errors } = failures;
    Ok(MapOptions { on_error, max_errors, ..said.or(defaults) })
}

fn source(called: &str, source: Arc<dyn Datasource>, arguments: &Arguments) -> Result<LogicalPlan> {
    let num_blocks = arguments.size("override_num_blocks");
    num_blocks.map_or(Ok(()), |n| check_num_blocks("argument 'override_num_blocks'", n))?;
    scan(called, Arc::new(DatasourceTable::new(source, num_blocks)))
}

fn scan(name: &str, table: Arc<dyn datafusion::catalog::TableProvider>) -> Result<LogicalPlan> {
    LogicalPlanBuilder::scan(TableReference::bare(name), provider_as_source(table), None)?.build()
}

fn plan_table(expression: &Expr, function: &str, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
    let Expr::Subquery(query) = expression else {
        return plan_err!(
            "{function} needs a table, TABLE(t) or a subquery in the place of {expression}; sessions other than \
             DataContext take subqueries only"
        );
    };
    context.plan(TableFactor::Derived { lateral: false, subquery: query.clone(), alias: None, sample: None })
}

/// The path of a table that is named by a string.
fn quoted_path(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().filter(|i| i.quote_style == Some('\'')).map(|i| i.value.clone()),
        _ => None,
    }
}

fn take_sample(relation: &mut TableFactor) -> Option<datafusion::sql::sqlparser::ast::TableSample> {
    use datafusion::sql::sqlparser::ast::TableSampleKind::{AfterTableAlias, BeforeTableAlias};
    let (TableFactor::Table { sample, .. } | TableFactor::Derived { sample, .. }) = relation else {
        return None;
    };
    sample.take().map(|kind| match kind {
        AfterTableAlias(sample) | BeforeTableAlias(sample) => *sample,
    })
}

fn take_alias(relation: &mut TableFactor) -> Option<TableAlias> {
    match relation {
        // The name of a plain table stays its qualifier.
        TableFactor::Table { alias, .. } | TableFactor::Derived { alias, .. } => alias.take(),
        _ => None,
    }
}

/// Modifiers that DataFusion would drop without a word.
fn refuse_modifiers(relation: &TableFactor) -> Result<()> {
    let TableFactor::Table { name, with_hints, version, with_ordinality, partitions, json_path, index_hints, .. } =
        relation
    else {
        return Ok(());
    };
    let modifier = if !with_hints.is_empty() {
        "WITH hints"
    } else if version.is_some() {
        "a version (time travel)"
    } else if *with_ordinality {
        "WITH ORDINALITY"
    } else if !partitions.is_empty() {
        "PARTITION"
    } else if json_path.is_some() {
        "a JSON path"
    } else if !index_hints.is_empty() {
        "index hints"
    } else {
        return Ok(());
    };
    not_impl_err!("{modifier} on table {name}; a table may have an alias and TABLESAMPLE")
}
