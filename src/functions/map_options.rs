//! What both front doors say of a map operator.

use std::collections::BTreeMap;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::Result;

use super::{
    BatchSize, ComputeStrategy, Concurrency, Failures, FunctionRef, FunctionRegistry, MaxErrors, OnError, from_closure,
};
use crate::config::ByteSize;

/// What `map_batches` calls: a closure, a function with state, or the name of a registered function.
#[derive(Debug)]
pub enum MapFunction {
    /// A function.
    Function(FunctionRef),
    /// The name of one.
    Name(String),
}

impl From<&str> for MapFunction {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<FunctionRef> for MapFunction {
    fn from(function: FunctionRef) -> Self {
        Self::Function(function)
    }
}

impl<F> From<F> for MapFunction
where
    F: Fn(RecordBatch) -> Result<RecordBatch> + Send + Sync + 'static,
{
    fn from(f: F) -> Self {
        Self::Function(from_closure(f))
    }
}

impl MapFunction {
    /// The function, and the options with its defaults; an unknown name is an error.
    pub(crate) fn resolve(self, registry: &FunctionRegistry, options: MapOptions) -> Result<(FunctionRef, MapOptions)> {
        match self {
            Self::Function(function) => Ok((function, options)),
            Self::Name(name) => Ok((registry.get(&name)?, options.or(registry.defaults(&name)?))),
        }
    }
}

/// How a map operator runs. Start from the default and set what differs.
#[derive(Debug, Clone, Default)]
pub struct MapOptions {
    /// Rows that the function gets at once.
    pub batch_size: BatchSize,
    /// Tasks or actors.
    pub compute: ComputeStrategy,
    /// Most tasks that run at once, or how many actors there are: `Some(8.into())`, `Some((2, 8).into())`.
    pub concurrency: Option<Concurrency>,
    /// Logical CPUs of a task; 1 if not said.
    pub num_cpus: Option<f64>,
    /// GPUs of a task while it runs. There are `blockyard.num_gpus` of them.
    pub num_gpus: Option<f64>,
    /// Memory that a task is expected to need while it runs.
    pub memory: Option<ByteSize>,
    /// Other resources that it needs, by name. There are as many as `blockyard.resources` says.
    pub resources: BTreeMap<String, f64>,
    /// Tasks that an actor has at most, one that it runs and others that wait for it; 2 if not said.
    pub max_tasks_in_flight_per_actor: Option<usize>,
    /// Calls of an async function that each task has in flight at most; 16 if not said.
    pub max_concurrency: Option<usize>,
    /// What becomes of rows for which the function fails.
    pub on_error: OnError,
    /// How many such rows there may be; any number if not said.
    pub max_errors: Option<MaxErrors>,
    /// Columns that the function returns, where calling it on an empty batch would not tell.
    pub schema: Option<SchemaRef>,
    /// What plans and stats show, instead of the name of the function.
    pub name: Option<String>,
    /// The function returns as many rows as it gets, so that a limit may move below it.
    pub preserves_row_count: bool,
}

impl MapOptions {
    /// What is put up with, checked.
    pub(crate) fn failures(&self) -> Result<Failures> {
        let failures = Failures { on_error: self.on_error.clone(), max_errors: self.max_errors };
        failures.check()?;
        Ok(failures)
    }

    /// These options, with those of `defaults` where nothing is said.
    pub(crate) fn or(self, defaults: Self) -> Self {
        // How many there are may be said in two places; the call's word counts, wherever it stands.
        let says_size = self.compute.size().is_some() || self.concurrency.is_some();
        let compute = if self.compute == ComputeStrategy::Auto { defaults.compute } else { self.compute };
        let default_size = defaults.concurrency.or(defaults.compute.size());
        let says_errors = self.on_error != OnError::Fail || self.max_errors.is_some();
        Self {
            batch_size: if self.batch_size == BatchSize::AsTheyCome { defaults.batch_size } else { self.batch_size },
            compute: if self.compute.size().is_some() { compute } else { compute.without_size() },
            concurrency: if says_size { self.concurrency } else { default_size },
            num_cpus: self.num_cpus.or(defaults.num_cpus),
            num_gpus: self.num_gpus.or(defaults.num_gpus),
            memory: self.memory.or(defaults.memory),
            resources: if self.resources.is_empty() { defaults.resources } else { self.resources },
            max_tasks_in_flight_per_actor: self
                .max_tasks_in_flight_per_actor
                .or(defaults.max_tasks_in_flight_per_actor.filter(|_| compute == defaults.compute)),
            max_concurrency: self.max_concurrency.or(defaults.max_concurrency),
            on_error: if says_errors { self.on_error } else { defaults.on_error },
            max_errors: if says_errors { self.max_errors } else { defaults.max_errors },
            schema: self.schema.or(defaults.schema),
            name: self.name.or(defaults.name),
            preserves_row_count: self.preserves_row_count || defaults.preserves_row_count,
        }
    }

    /// The function with what is declared of it.
    pub(crate) fn apply(&self, function: FunctionRef) -> FunctionRef {
        let preserves = self.preserves_row_count || function.preserves_row_count();
        function.declare(self.name.clone(), self.schema.clone(), preserves)
    }
}
