//! What the streams of one execution of a plan share.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use datafusion::common::{Result, internal_err};
use datafusion::execution::TaskContext;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;

use crate::runtime::UnderWay;

/// So long is the error of a stream that came too late held back.
const HELD_BACK: Duration = Duration::from_secs(2);

/// State per execution of an operator. A partition that is executed again, or under another task context, belongs to
/// another execution: DataFusion runs a plan twice without asking, for example the left side of some joins.
#[derive(Debug)]
pub(crate) struct Executions<T>(Mutex<Vec<Started<T>>>);

#[derive(Debug)]
struct Started<T> {
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
    pub(crate) fn join(&self, partition: usize, context: &Arc<TaskContext>) -> Arc<T> {
        let mut running = self.0.lock();
        running.retain(|r| r.context.strong_count() > 0);
        let same =
            |r: &&mut Started<T>| r.context.as_ptr() == Arc::as_ptr(context) && !r.partitions.contains(&partition);
        if let Some(execution) = running.iter_mut().find(same) {
            execution.partitions.insert(partition);
            return Arc::clone(&execution.state);
        }
        let state = Arc::<T>::default();
        let partitions = HashSet::from([partition]);
        running.push(Started { context: Arc::downgrade(context), partitions, state: Arc::clone(&state) });
        state
    }
}

/// Work that the streams of all partitions share. When the last of them drops, it is cancelled and what it made goes.
#[derive(Debug, Default)]
pub(crate) enum RunState<T> {
    #[default]
    NotStarted,
    /// Whether any of its rows have been handed out.
    Running(Weak<T>, bool),
    Ended,
}

/// What a stream takes part in.
#[derive(Debug)]
pub(crate) enum Joined<T> {
    Work(Arc<T>),
    Nothing(NoWork),
}

/// Why there is no work.
#[derive(Debug)]
pub(crate) enum NoWork {
    /// All of it is done.
    Ended,
    /// All others have been dropped, and some of the rows with them.
    Cancelled { operator: String },
}

impl NoWork {
    /// No rows, or an error where some would be missing. Streams are dropped where one has failed, mostly: why it has
    /// is said first, as the error is held back for a while.
    pub(crate) fn stream<Item: Send + 'static>(self) -> BoxStream<'static, Result<Item>> {
        match self {
            Self::Ended => stream::empty().boxed(),
            Self::Cancelled { operator } => stream::once(async move {
                UnderWay::during(tokio::time::sleep(HELD_BACK)).await;
                internal_err!("a partition of {operator} was executed after the others were cancelled")
            })
            .boxed(),
        }
    }
}

impl<T> RunState<T> {
    /// The work of `operator`, which the first stream starts.
    ///
    /// A stream may come when all others have been dropped already: DataFusion executes partitions one by one while it
    /// polls, and drops one of which it needs nothing, as in a join without rows on the other side. As long as no rows
    /// were handed out, the work begins again.
    pub(crate) fn join(&mut self, operator: &str, start: impl FnOnce() -> Result<Arc<T>>) -> Result<Joined<T>> {
        match self {
            Self::Ended => return Ok(Joined::Nothing(NoWork::Ended)),
            Self::Running(work, given) => match (work.upgrade(), *given) {
                (Some(work), _) => return Ok(Joined::Work(work)),
                (None, false) => {}
                (None, true) => return Ok(Joined::Nothing(NoWork::Cancelled { operator: operator.to_owned() })),
            },
            Self::NotStarted => {}
        }
        let work = start()?;
        *self = Self::Running(Arc::downgrade(&work), false);
        Ok(Joined::Work(work))
    }

    /// Some of the rows are handed out.
    pub(crate) fn gives(&mut self) {
        if let Self::Running(_, given) = self {
            *given = true;
        }
    }

    /// All rows have been handed out.
    pub(crate) fn ends(&mut self) {
        *self = Self::Ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn work_begins_again_as_long_as_nothing_was_handed_out() {
        let mut run = RunState::default();
        let mut starts = 0;
        let mut join = |run: &mut RunState<usize>| {
            let start = || {
                starts += 1;
                Ok(Arc::new(starts))
            };
            run.join("a queue", start).unwrap()
        };
        let work = |joined| match joined {
            Joined::Work(work) => work,
            Joined::Nothing(none) => panic!("{none:?}"),
        };
        let first = work(join(&mut run));
        assert!(Arc::ptr_eq(&first, &work(join(&mut run))));
        drop(first);
        let again = work(join(&mut run));
        assert_eq!(*again, 2);
        run.gives();
        assert!(Arc::ptr_eq(&again, &work(join(&mut run))));
        drop(again);
        assert!(matches!(join(&mut run), Joined::Nothing(NoWork::Cancelled { operator }) if operator == "a queue"));
        run.ends();
        assert!(matches!(join(&mut run), Joined::Nothing(NoWork::Ended)));
    }

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
