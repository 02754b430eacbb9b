//! Ray's `map_batches`. Rust: `map_batches(f)`. SQL: `map_batches(t, 'f', batch_size => 1024)`.

use datafusion::common::Result;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;

use super::{MapNode, MapOperator, extension, node_of};
use crate::arguments;
use crate::call::{Planning, TableFunction, Tables, Value, Values, extension_of};
use crate::functions::{FunctionRef, FunctionRegistry, MapFunction, MapOptions};

arguments! {
    /// What is called, and how.
    #[derive(Debug)]
    pub(crate) struct MapBatchesArguments {
        /// The name of the function that gets batches of rows.
        pub(crate) function: String,
        pub(crate) options: MapOptions,
    }
}

/// `map_batches(t, 'f', ..)`.
#[derive(Debug)]
pub(crate) struct MapBatches;

impl TableFunction for MapBatches {
    type Arguments = MapBatchesArguments;

    fn name(&self) -> &'static str {
        "map_batches"
    }

    fn about(&self) -> &'static str {
        "What a registered function makes of batches of rows."
    }

    fn tables(&self) -> Tables {
        Tables::One
    }

    fn complete(&self, values: &mut Values, session: &SessionState) -> Result<()> {
        with_defaults(values, session)
    }

    fn plan(&self, arguments: MapBatchesArguments, planning: Planning<'_>) -> Result<LogicalPlan> {
        let registry = extension_of::<FunctionRegistry>(planning.session)?;
        let (function, options) = MapFunction::Name(arguments.function).resolve(&registry, arguments.options)?;
        map_batches(planning.table()?, function, &options)
    }

    fn call_of(&self, plan: &LogicalPlan) -> Result<Option<(Vec<LogicalPlan>, MapBatchesArguments)>> {
        let Some(map) = node_of::<MapNode>(plan) else {
            return Ok(None);
        };
        let MapOperator::Batches(function, batch_size) = map.operator() else {
            return Ok(None);
        };
        let options = MapOptions::saying(function, *batch_size, map.compute(), map.failures());
        let arguments = MapBatchesArguments { function: function.name().to_owned(), options };
        Ok(Some((vec![map.input().clone()], arguments)))
    }
}

/// What the session knows of the function of a call, where the call does not say.
pub(super) fn with_defaults(values: &mut Values, session: &SessionState) -> Result<()> {
    let registry = extension_of::<FunctionRegistry>(session)?;
    match values.get("function").and_then(Value::text).map(str::to_owned) {
        Some(function) => MapOptions::complete(values, &function, &registry),
        None => Ok(()),
    }
}

/// `function` on batches of `input`.
pub(crate) fn map_batches(input: LogicalPlan, function: FunctionRef, options: &MapOptions) -> Result<LogicalPlan> {
    let function = options.apply(function);
    let compute = options.compute(&function)?;
    let operator = MapOperator::Batches(function, options.batch_size);
    Ok(extension(MapNode::try_new(input, operator, compute, options.failures()?)?))
}
