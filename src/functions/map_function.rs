//! What `map_batches` calls, and what is known of it by its name.

use datafusion::arrow::array::RecordBatch;
use datafusion::common::Result;

use super::arguments::default_failures;
use super::{FunctionRef, FunctionRegistry, MapOptions, from_closure};
use crate::call::{Arguments, Values};

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

impl MapOptions {
    /// Gives the values of a call of the function `name` what its defaults say of failures. The others are merged when
    /// they have types: [`MapOptions::or`].
    pub(crate) fn complete(values: &mut Values, name: &str, registry: &FunctionRegistry) -> Result<()> {
        let mut defaults = Values::new(values.owner());
        registry.defaults(name)?.to_values(&mut defaults)?;
        default_failures(values, &defaults);
        Ok(())
    }
}
