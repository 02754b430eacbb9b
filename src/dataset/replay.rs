//! What another process needs to come to the same plan.

use std::sync::Arc;

use super::Dataset;

/// The statement that a dataset is of, and those before it that say what its names mean.
#[derive(Debug, Clone)]
pub(crate) struct Replay {
    /// In the order in which they ran.
    pub(crate) definitions: Arc<[String]>,
    pub(crate) statement: String,
}

impl Dataset {
    /// The dataset as what a statement asks for.
    pub(crate) fn said_by(mut self, statement: &str) -> Self {
        let replay = Replay { definitions: self.context.definitions(), statement: statement.to_owned() };
        self.state.config_mut().set_extension(Arc::new(replay));
        self
    }
}
