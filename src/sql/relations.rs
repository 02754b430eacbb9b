//! Plans the relations that are ours: table functions and samples; and refuses modifiers that nobody would act on.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, TableReference, not_impl_err, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::{Expr, FunctionArg, ObjectName, TableAlias, TableFactor};

use super::messages::check_outer_call;
use super::sample::sample_of;
use super::syntax::function_of;
use super::{arguments, names, set_operations};
use crate::call::{AnyTableFunction, Planning, TableFunctions};
use crate::functions::{Compute, Failures};
use crate::logical::{MapNode, MapOperator, extension};
use crate::runtime::block_on_io;
use crate::seed::fresh_seed;
use crate::sources::{FileTable, check_local, first_file, format_of_path};

/// Plans our relations. DataFusion asks it first for every item of FROM.
pub(crate) struct BlockyardRelationPlanner {
    functions: Arc<TableFunctions>,
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
}

impl BlockyardRelationPlanner {
    /// A planner of calls of `functions`, which see the extensions of `config`, and files through `runtime`.
    pub(crate) fn new(functions: Arc<TableFunctions>, config: SessionConfig, runtime: Arc<RuntimeEnv>) -> Self {
        Self { functions, config, runtime }
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
            let operator = MapOperator::Sample { fraction, seed: seed.unwrap_or_else(fresh_seed), others: false };
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
        let Some(function) = function_of(name, &self.functions) else {
            check_outer_call(name, &args.args, context, &self.functions)?;
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let by_position = args.args.iter().filter(|arg| matches!(arg, FunctionArg::Unnamed(_))).count();
        if !function.takes(by_position, args.args.len() - by_position) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        let plan = self.plan_call(function.as_ref(), &args.args, context)?;
        planned(plan, alias.clone())
    }
}

fn planned(plan: LogicalPlan, alias: Option<TableAlias>) -> Result<RelationPlanning> {
    Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
}

impl BlockyardRelationPlanner {
    fn plan_call(
        &self,
        function: &dyn AnyTableFunction,
        args: &[FunctionArg],
        context: &mut dyn RelationPlannerContext,
    ) -> Result<LogicalPlan> {
        let (tables, values) =
            arguments::parse(function.name(), function.tables(), &function.parameters(), args.to_vec())?;
        let session = self.session(context);
        // Before the tables, which may be much: what is wrong here is easy to tell.
        function.check(&values, &session)?;
        let tables = tables.iter().map(|table| plan_table(table, function.name(), context));
        let tables = tables.collect::<Result<_>>()?;
        let relation = &names::name_of_call(function.name(), args, &self.functions);
        function.plan(&values, Planning { tables, session: &session, relation })
    }

    /// `FROM 'dir/*.parquet'`.
    fn open(&self, path: String, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
        let runtime = Arc::clone(&self.runtime);
        let format = match format_of_path(&path) {
            // The files say it.
            None if path.contains("://") => {
                let of_first = path.clone();
                let first = block_on_io(async move { first_file(&runtime, &of_first).await })?;
                first.and_then(|first| format_of_path(&first))
            }
            format => format,
        };
        let Some(format) = format else {
            check_local(&path)?;
            return plan_err!(
                "'{path}' is not the path of a Parquet, CSV or JSON file, nor of a directory of such files"
            );
        };
        let session = self.session(context);
        let called = names::name_of_path(&path, "files");
        let table = block_on_io(async move { FileTable::open(&session, format, vec![path]).await })?;
        LogicalPlanBuilder::scan(TableReference::bare(called), provider_as_source(Arc::new(table)), None)?.build()
    }

    /// A session to plan calls with: planning does not see the one that it is part of.
    fn session(&self, context: &dyn RelationPlannerContext) -> SessionState {
        let mut config = self.config.clone();
        *config.options_mut() = context.context_provider().options().clone();
        SessionStateBuilder::new().with_config(config).with_runtime_env(Arc::clone(&self.runtime)).build()
    }
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
