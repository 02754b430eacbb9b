//! What the streams of one execution of a plan share.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use datafusion::execution::TaskContext;
use parking_lot::Mutex;

/// State per execution of an operator. A partition that is executed again, or under another task context, belongs to
/// another execution: DataFusion runs a plan twice without asking, for example the left side of some joins.
#[derive(Debug)]
pub(super) struct Executions<T>(Mutex<Vec<Running<T>>>);

#[derive(Debug)]
struct Running<T> {
    context: Weak<TaskContext>,
    partitions: HashSet<usize>,
    state: Arc<T>,
}

impl<T> Default for Executions<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> Executions<T> {
    /// The state of the execution to which this partition belongs.
    pub(super) fn join(&self, partition: usize, context: &Arc<TaskContext>) -> Arc<T> {
        let mut running = self.0.lock();
        running.retain(|r| r.context.strong_count() > 0);
        let same =
            |r: &&mut Running<T>| r.context.as_ptr() == Arc::as_ptr(context) && !r.partitions.contains(&partition);
        if let Some(execution) = running.iter_mut().find(same) {
            execution.partitions.insert(partition);
            return Arc::clone(&execution.state);
        }
        let state = Arc::<T>::default();
        let partitions = HashSet::from([partition]);
        running.push(Running { context: Arc::downgrade(context), partitions, state: Arc::clone(&state) });
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn partitions_of_one_execution_share_and_repeats_do_not() {
        let executions = Executions::<AtomicUsize>::default();
        let (one, two) = (Arc::new(TaskContext::default()), Arc::new(TaskContext::default()));
        let first = executions.join(0, &one);
        assert!(Arc::ptr_eq(&first, &executions.join(1, &one)));
        assert!(!Arc::ptr_eq(&first, &executions.join(0, &one)));
        assert!(!Arc::ptr_eq(&first, &executions.join(2, &two)));
        assert!(Arc::ptr_eq(&first, &executions.join(2, &one)));
    }
}
