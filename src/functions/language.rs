//! Functions that SQL creates: `CREATE FUNCTION name() LANGUAGE language AS 'body'`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use parking_lot::RwLock;

use super::FunctionRef;

/// Makes functions of the texts that `CREATE FUNCTION` gives, in one language: expressions, scripts, paths of models.
pub trait FunctionLanguage: Send + Sync {
    /// The function `name` whose body is `body`.
    ///
    /// # Errors
    ///
    /// An error ends the statement.
    fn create(&self, name: &str, body: &str) -> Result<FunctionRef>;
}

impl<F: Fn(&str, &str) -> Result<FunctionRef> + Send + Sync> FunctionLanguage for F {
    fn create(&self, name: &str, body: &str) -> Result<FunctionRef> {
        self(name, body)
    }
}

/// The languages of a session by their names, in lower case.
#[derive(Default, Clone)]
pub(super) struct Languages(Arc<RwLock<BTreeMap<String, Arc<dyn FunctionLanguage>>>>);

impl Languages {
    pub(super) fn add(&self, name: &str, language: Arc<dyn FunctionLanguage>) {
        self.0.write().insert(name.to_lowercase(), language);
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<dyn FunctionLanguage>> {
        self.0.read().get(&name.to_lowercase()).cloned()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.read().keys().cloned().collect()
    }
}

impl fmt::Debug for Languages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
