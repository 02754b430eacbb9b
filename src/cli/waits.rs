//! Who waits for whom, for people.

use crate::observability::{ConsumerWaits, ExecutionCallback};

/// Says on standard error who waits for whom.
#[derive(Debug)]
pub(super) struct WaitWarnings;

impl ExecutionCallback for WaitWarnings {
    fn on_consumer_waits(&self, event: &ConsumerWaits) {
        let others: Vec<String> = event.waits_for.iter().map(ToString::to_string).collect();
        let others = match others.as_slice() {
            [] => "the dataset".to_owned(),
            [one] => format!("consumer {one}"),
            many => format!("consumers {}", many.join(", ")),
        };
        eprintln!("warning: consumer {} has waited for {others} for {}s", event.consumer, event.waited.as_secs());
    }
}
