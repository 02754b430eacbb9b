//! Functions by name.

use std::collections::BTreeMap;

use datafusion::common::Result;
use parking_lot::RwLock;

use super::{FunctionRef, builtin};
use crate::error::unknown_name;

/// The functions that SQL and `map_batches("name")` can call. Starts with the built-in ones.
#[derive(Debug)]
pub struct FunctionRegistry {
    functions: RwLock<BTreeMap<String, FunctionRef>>,
}

impl Default for FunctionRegistry {
    fn default() -> Self {
        let functions = builtin::all().into_iter().map(|f| (f.name().to_owned(), f)).collect();
        Self { functions: RwLock::new(functions) }
    }
}

impl FunctionRegistry {
    /// Adds a function under `name`, or replaces the one of this name.
    pub fn register(&self, name: &str, function: FunctionRef) {
        let preserves = function.preserves_row_count();
        let function = match function.name() == name {
            true => function,
            false => function.declare(Some(name.to_owned()), None, preserves),
        };
        self.functions.write().insert(name.to_owned(), function);
    }

    /// The function of this name; the error suggests the nearest one.
    pub fn get(&self, name: &str) -> Result<FunctionRef> {
        let functions = self.functions.read();
        functions.get(name).cloned().ok_or_else(|| {
            let names: Vec<_> = functions.keys().map(String::as_str).collect();
            unknown_name("function", name, "map_batches", &names)
        })
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.functions.read().keys().cloned().collect()
    }
}
