//! Who waits for whom, for people.

use crate::observability::{ConsumerWaits, ExecutionCallback};

/// Says on standard error who waits for whom.
#[derive(Debug)]
pub(super) struct WaitWarnings;

impl ExecutionCallback for WaitWarnings {
    fn on_consumer_waits(&self, event: &ConsumerWaits) {
        eprintln!(
            "warning: consumer {} has waited for {} for {}s",
            event.consumer,
            event.whom(),
            event.waited.as_secs()
        );
    }
}
