//! The table functions of a session.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::LogicalPlan;
use parking_lot::RwLock;

use super::{AnyTableFunction, Call, Parameter, TableFunction, Tables};

/// The table functions that SQL can call. Planning, errors, completion and the reference read it.
#[derive(Debug)]
pub struct TableFunctions(RwLock<Vec<Arc<dyn AnyTableFunction>>>);

impl TableFunctions {
    /// The functions `all`.
    pub(crate) fn new(all: Vec<Arc<dyn AnyTableFunction>>) -> Self {
        Self(RwLock::new(all))
    }

    /// Adds a function.
    ///
    /// # Errors
    ///
    /// Where there is one of its name.
    pub fn register(&self, function: impl TableFunction) -> Result<()> {
        let name = TableFunction::name(&function);
        if self.find(name).is_some() {
            return plan_err!("there is a table function '{name}' already");
        }
        self.0.write().push(Arc::new(function));
        Ok(())
    }

    /// Names of all functions.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.read().iter().map(|function| function.name()).collect()
    }

    /// What a function does, the tables that it takes, and its arguments.
    pub fn describe(&self, name: &str) -> Option<(&'static str, Tables, Vec<Parameter>)> {
        self.find(name).map(|function| (function.about(), function.tables(), function.parameters()))
    }

    /// The function of this name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<dyn AnyTableFunction>> {
        self.0.read().iter().find(|function| function.name().eq_ignore_ascii_case(name)).map(Arc::clone)
    }

    /// The call that gives a plan, if one does.
    pub(crate) fn call_of(&self, plan: &LogicalPlan) -> Result<Option<Call>> {
        let functions = self.0.read().clone();
        for function in functions {
            if let Some(call) = function.call_of(plan)? {
                return Ok(Some(call));
            }
        }
        Ok(None)
    }
}
