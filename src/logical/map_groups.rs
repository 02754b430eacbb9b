//! Ray's `map_groups`: rows with equal keys come into one block, sorted by them, and a function gets the rows of each
//! group. A function that takes pieces of groups gets them from a sort instead, which needs memory for no group.
//! Without keys all rows are one group.
//! Rust: `group_by(keys).map_groups_with(f, options)`. SQL: `map_groups(t, 'f', keys => ['a'])`.

use datafusion::common::{Column, Result, plan_err};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};

use super::map_batches::with_defaults;
use super::{MapNode, MapOperator, RepartitionNode, Repartitioning, extension, node_of};
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables, Values, extension_of};
use crate::error::unknown_name;
use crate::functions::{BatchSize, FunctionRef, FunctionRegistry, MapFunction, MapOptions};

arguments! {
    /// What is called, for which groups, and how.
    #[derive(Debug)]
    pub(crate) struct MapGroupsArguments {
        /// The name of the function that gets the rows of a group.
        pub(crate) function: String,
        /// Columns: rows with equal values are a group.
        pub(crate) keys: Vec<String>,
        pub(crate) options: MapOptions,
    }
}

/// `map_groups(t, 'f', keys => ['a'], ..)`.
#[derive(Debug)]
pub(crate) struct MapGroups;

impl TableFunction for MapGroups {
    type Arguments = MapGroupsArguments;

    fn name(&self) -> &'static str {
        "map_groups"
    }

    fn about(&self) -> &'static str {
        "What a registered function makes of all rows of each group, or of pieces of at most `batch_size` rows."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn complete(&self, values: &mut Values, session: &SessionState) -> Result<()> {
        with_defaults(values, session)
    }

    fn plan(&self, arguments: MapGroupsArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let registry = extension_of::<FunctionRegistry>(planning.session)?;
        let (function, options) = MapFunction::Name(arguments.function).resolve(&registry, arguments.options)?;
        map_groups(planning.table()?, arguments.keys, function, &options)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, MapGroupsArguments)>> {
        let Some(map) = node_of::<MapNode>(plan) else {
            return Ok(None);
        };
        let MapOperator::Groups(function, keys, max_rows) = map.operator() else {
            return Ok(None);
        };
        // The call brings groups together itself.
        let input = match map.input() {
            LogicalPlan::Extension(grouped) => grouped.node.inputs().first().map_or(map.input(), |input| input),
            LogicalPlan::Sort(sorted) => &sorted.input,
            input => input,
        };
        let batch_size = max_rows.map_or(BatchSize::AsTheyCome, BatchSize::Rows);
        let options = MapOptions::saying(function, batch_size, map.compute(), map.failures());
        let arguments = MapGroupsArguments { function: function.name().to_owned(), keys: keys.clone(), options };
        Ok(Some((vec![input.clone()], arguments)))
    }
}

/// `function` on all rows of each group, or on pieces of at most `batch_size` rows.
pub(crate) fn map_groups(
    input: LogicalPlan,
    keys: Vec<String>,
    function: FunctionRef,
    options: &MapOptions,
) -> Result<LogicalPlan> {
    let max_rows = match options.batch_size {
        BatchSize::AsTheyCome => None,
        BatchSize::Rows(rows) => Some(rows),
        BatchSize::WholeBlock => {
            return plan_err!("map_groups takes a batch_size in rows, for a function that takes pieces of groups");
        }
    };
    let known: Vec<&str> = input.schema().fields().iter().map(|field| field.name().as_str()).collect();
    if let Some(key) = keys.iter().find(|key| !known.contains(&key.as_str())) {
        return Err(unknown_name("column", key, "map_groups", &known));
    }
    // Without keys all rows are one group.
    let one_group = Repartitioning::Blocks { num_blocks: 1, shuffle: false };
    let by_keys = Repartitioning::Keys { keys: keys.clone(), num_blocks: None, sort: true };
    let grouped = match max_rows {
        _ if keys.is_empty() => extension(RepartitionNode::try_new(input, one_group)?),
        None => extension(RepartitionNode::try_new(input, by_keys)?),
        Some(_) => sorted(input, &keys)?,
    };
    let function = options.clone().apply(function);
    let compute = options.compute(&function)?;
    Ok(extension(MapNode::try_new(
        grouped,
        MapOperator::Groups(function, keys, max_rows),
        compute,
        options.failures()?,
    )?))
}

fn sorted(input: LogicalPlan, keys: &[String]) -> Result<LogicalPlan> {
    let fields = input.schema().iter().filter(|(_, field)| keys.contains(field.name()));
    let order: Vec<_> = fields.map(|field| Expr::Column(Column::from(field)).sort(true, false)).collect();
    LogicalPlanBuilder::from(input).sort(order)?.build()
}
