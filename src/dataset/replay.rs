//! What another process needs to come to the same plan.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Dataset;

/// The statements of a session that said what names mean, in the order in which they ran.
#[derive(Debug, Clone, Default)]
pub(super) struct Definitions(Arc<Mutex<Vec<String>>>);

impl Definitions {
    /// Remembers one more.
    pub(super) fn add(&self, statement: &str) {
        self.0.lock().push(statement.to_owned());
    }
}

/// The statement that a dataset is of, and those before it that say what its names mean.
#[derive(Debug)]
pub(crate) struct Replay {
    definitions: Definitions,
    /// So many of these came before it.
    before: usize,
    pub(crate) statement: String,
}

impl Replay {
    /// The statements before it, in the order in which they ran.
    pub(crate) fn definitions(&self) -> Vec<String> {
        self.definitions.0.lock()[..self.before].to_vec()
    }
}

impl Dataset {
    /// A dataset that is made of another one, as what a statement around that of the other asks for.
    pub(super) fn said_around(mut self, statement: impl FnOnce(&str) -> String) -> Self {
        if let Some(inner) = self.state.config().get_extension::<Replay>() {
            let (definitions, before) = (inner.definitions.clone(), inner.before);
            let replay = Replay { definitions, before, statement: statement(&inner.statement) };
            self.state.config_mut().set_extension(Arc::new(replay));
        }
        self
    }

    /// The dataset as what a statement asks for.
    pub(crate) fn said_by(mut self, statement: &str) -> Self {
        let definitions = self.context.definitions().clone();
        let before = definitions.0.lock().len();
        let replay = Replay { definitions, before, statement: statement.to_owned() };
        self.state.config_mut().set_extension(Arc::new(replay));
        self
    }
}
