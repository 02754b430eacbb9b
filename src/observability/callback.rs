//! Hooks into the life of an execution, for applications.

use std::fmt::Debug;
use std::time::Duration;

use datafusion::common::Result;

/// Called as executions begin, go on and end: `Blockyard { callbacks, .. }`. Several queries can run at once, so calls
/// come from several threads; they are made where rows are handed out and should be quick.
pub trait ExecutionCallback: Debug + Send + Sync {
    /// An execution is about to start.
    ///
    /// # Errors
    ///
    /// An error keeps it from starting.
    fn before_execution(&self, event: &ExecutionStarted) -> Result<()> {
        let _any = event;
        Ok(())
    }

    /// Rows were handed out; called at most ten times a second.
    fn on_progress(&self, event: &ExecutionProgress) {
        let _any = event;
    }

    /// A consumer of a split has waited for others for 10 seconds, and then each time that has doubled.
    fn on_consumer_waits(&self, event: &ConsumerWaits) {
        let _any = event;
    }

    /// An execution has handed out all of its rows.
    fn after_success(&self, event: &ExecutionSucceeded) {
        let _any = event;
    }

    /// An execution has failed, or was dropped before its end.
    fn after_failure(&self, event: &ExecutionFailed) {
        let _any = event;
    }
}

/// An execution that is about to start.
#[derive(Debug, Clone)]
pub struct ExecutionStarted {
    /// Number of the query in its session.
    pub query: u64,
    /// Its physical plan.
    pub plan: String,
}

/// How an execution stands.
#[derive(Debug, Clone)]
pub struct ExecutionProgress {
    /// Number of the query in its session.
    pub query: u64,
    /// Time since its start.
    pub elapsed: Duration,
    /// Rows that were handed out.
    pub rows: usize,
    /// Tasks of all stages that ended.
    pub tasks: usize,
}

/// A consumer of a split that waits.
#[derive(Debug, Clone)]
pub struct ConsumerWaits {
    /// Its number.
    pub consumer: usize,
    /// The consumers that it waits for; none where it waits for the dataset.
    pub waits_for: Vec<usize>,
    /// For how long.
    pub waited: Duration,
}

impl ConsumerWaits {
    /// Whom it waits for, in words.
    pub fn whom(&self) -> String {
        match self.waits_for.as_slice() {
            [] => "the dataset".to_owned(),
            [one] => format!("consumer {one}"),
            many => {
                format!("consumers {}", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// An execution that has ended well.
#[derive(Debug, Clone)]
pub struct ExecutionSucceeded {
    /// Number of the query in its session.
    pub query: u64,
    /// Time since its start.
    pub elapsed: Duration,
    /// Rows that were handed out.
    pub rows: usize,
    /// The report of `Dataset::stats`.
    pub stats: String,
}

/// An execution that has not.
#[derive(Debug, Clone)]
pub struct ExecutionFailed {
    /// Number of the query in its session.
    pub query: u64,
    /// Time since its start.
    pub elapsed: Duration,
    /// Rows that were handed out.
    pub rows: usize,
    /// The error, or that it was dropped.
    pub error: String,
}
