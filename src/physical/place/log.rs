//! Where the rows of an input came from.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;

use super::marked::{Marked, MarkedStream};
use super::value::Mark;

/// For rows of an input, counted through, in which of its tasks they were. It grows by an entry for each task.
#[derive(Debug, Clone, Default)]
pub(crate) struct MarkLog(Arc<Mutex<Vec<(u64, Mark)>>>);

impl MarkLog {
    /// Says that row `number` of the input was at `mark`. Numbers increase.
    pub(crate) fn note(&self, number: u64, mark: &Mark) {
        let mut entries = self.0.lock();
        let goes_on = |(first, begun): &(u64, Mark)| begun.id == mark.id && begun.row + (number - first) == mark.row;
        if !entries.last().is_some_and(goes_on) {
            entries.push((number, mark.clone()));
        }
    }

    /// The same rows, noted as they come, the first one as row `number`.
    pub(crate) fn noting(&self, number: u64, rows: MarkedStream) -> MarkedStream {
        let (log, mut next) = (self.clone(), number);
        let note = move |marked: &Marked| {
            log.note(next, &marked.mark);
            next += marked.batch.num_rows() as u64;
        };
        rows.inspect_ok(note).boxed()
    }

    /// Where row `number` of the input was, or would have been if its task had had another row.
    pub(crate) fn mark_of(&self, number: u64) -> Option<Mark> {
        let entries = self.0.lock();
        let behind = entries.partition_point(|(first, _)| *first <= number);
        let (first, mark) = entries.get(behind.checked_sub(1)?)?;
        Some(Mark { id: mark.id.clone(), row: mark.row + (number - first) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::TaskId;

    #[test]
    fn rows_are_found_in_the_task_that_they_were_in() {
        let (log, mark) = (MarkLog::default(), |task, row| Mark { id: TaskId::root(task), row });
        assert!(log.mark_of(0).is_none());
        for (number, at) in [(0, mark(3, 0)), (10, mark(3, 10)), (25, mark(4, 0)), (30, mark(6, 0))] {
            log.note(number, &at);
        }
        assert_eq!(log.0.lock().len(), 3);
        let found = [0, 24, 25, 29, 30, 99].map(|number| log.mark_of(number).unwrap());
        assert_eq!(found, [mark(3, 0), mark(3, 24), mark(4, 0), mark(4, 4), mark(6, 0), mark(6, 69)]);
    }
}
