//! Functions by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use parking_lot::RwLock;

use super::language::Languages;
use super::{FunctionLanguage, FunctionRef, MapOptions, builtin};
use crate::error::unknown_name;

/// The language of functions that are there under another name already.
const REGISTERED: &str = "blockyard";

/// The functions that SQL and `map_batches("name")` can call. Starts with the built-in ones.
#[derive(Debug)]
pub struct FunctionRegistry {
    functions: RwLock<BTreeMap<String, RegisteredFunction>>,
    languages: Languages,
}

/// A function, and how it runs where a call does not say.
#[derive(Debug, Clone)]
struct RegisteredFunction {
    function: FunctionRef,
    defaults: MapOptions,
    /// Whether `CREATE FUNCTION` made it.
    created: bool,
}

impl Default for FunctionRegistry {
    fn default() -> Self {
        let registered = |function| RegisteredFunction { function, defaults: MapOptions::default(), created: false };
        let functions = builtin::all().into_iter().map(|f| (f.name().to_owned(), registered(f))).collect();
        Self { functions: RwLock::new(functions), languages: Languages::default() }
    }
}

impl FunctionRegistry {
    /// The functions that there are now, of which a session of its own may create and drop some.
    pub(crate) fn forked(&self) -> Self {
        Self { functions: RwLock::new(self.functions.read().clone()), languages: self.languages.clone() }
    }

    /// Adds a function under `name`, or replaces the one of this name.
    pub fn register(&self, name: &str, function: FunctionRef) {
        self.register_with(name, function, MapOptions::default());
    }

    /// As [`FunctionRegistry::register`], with options for calls that do not say otherwise: batch size, compute,
    /// concurrency and resources.
    pub fn register_with(&self, name: &str, function: FunctionRef, defaults: MapOptions) {
        self.insert(name, function, defaults, false);
    }

    fn insert(&self, name: &str, function: FunctionRef, defaults: MapOptions, created: bool) {
        let (preserves, deterministic) = (function.preserves_row_count(), function.is_deterministic());
        let function = match function.name() == name {
            true => function,
            false => function.declare(Some(name.to_owned()), None, preserves, deterministic),
        };
        self.functions.write().insert(name.to_owned(), RegisteredFunction { function, defaults, created });
    }

    /// Lets `CREATE FUNCTION .. LANGUAGE name` make functions.
    pub fn register_language(&self, name: &str, language: Arc<dyn FunctionLanguage>) {
        self.languages.add(name, language);
    }

    /// Creates a function as SQL does. The language `blockyard` takes the name of a registered function as its body.
    pub(crate) fn create(
        &self,
        name: &str,
        language: &str,
        body: &str,
        defaults: MapOptions,
        replace: bool,
    ) -> Result<()> {
        if !replace && self.functions.read().contains_key(name) {
            return exec_err!("function '{name}' already exists; CREATE OR REPLACE FUNCTION replaces it");
        }
        let function = match self.languages.get(language) {
            Some(language) => language.create(name, body)?,
            None => self.get(body)?,
        };
        // Fails early where the defaults contradict the function.
        defaults.compute(&function)?;
        self.insert(name, function, defaults, true);
        Ok(())
    }

    /// Removes a function that [`FunctionRegistry::create`] has made. Nothing when there is none of this name.
    pub(crate) fn remove_created(&self, name: &str) -> Result<bool> {
        let mut functions = self.functions.write();
        match functions.get(name) {
            None => Ok(false),
            Some(function) if !function.created => {
                exec_err!("function '{name}' was not made by CREATE FUNCTION and cannot be dropped")
            }
            Some(_) => Ok(functions.remove(name).is_some()),
        }
    }

    /// Whether functions can be created in a language.
    pub(crate) fn has_language(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(REGISTERED) || self.languages.get(name).is_some()
    }

    /// The function of this name.
    ///
    /// # Errors
    ///
    /// Where there is none; the error suggests the nearest one.
    pub fn get(&self, name: &str) -> Result<FunctionRef> {
        Ok(self.registered(name)?.function)
    }

    /// How the function of this name runs where a call does not say.
    ///
    /// # Errors
    ///
    /// Where there is none.
    pub fn defaults(&self, name: &str) -> Result<MapOptions> {
        Ok(self.registered(name)?.defaults)
    }

    fn registered(&self, name: &str) -> Result<RegisteredFunction> {
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
